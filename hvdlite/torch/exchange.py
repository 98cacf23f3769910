"""Collectives on PyTorch tensors as they are started: several at once, by their full names.

Each returns a handle whose result is the list of what the tensors become.
"""

from typing import List, Sequence

import numpy as np
import torch

from hvdlite.core import rows
from hvdlite.core.collectives import Started, start_gathering
from hvdlite.core.handles import Handle
from hvdlite.core.native import lib
from hvdlite.core.process_set import ProcessSet, group_of
from hvdlite.core.rows import all_splits, part_shape, rows_of
from hvdlite.core.stages import staged
from hvdlite.torch.tensors import check, memories_of, plain


def allreduce(names, tensors, op, scales, process_set: ProcessSet, in_place: bool) -> Handle:
    """Reduce; the results are the tensors themselves if in place, else new ones."""
    ins = _inputs(names, tensors)
    outs = ins if in_place else [torch.empty_like(each) for each in ins]
    details = reduction(op, scales, process_set)
    return _start(lib.HVD_ALLREDUCE, names, ins, outs, [details] * len(names), tensors, in_place)


def broadcast(names, tensors, root_rank: int, process_set: ProcessSet, in_place: bool) -> Handle:
    """Broadcast; the results are the tensors themselves if in place, else new ones."""
    root, group = process_set.number_of(root_rank), group_of(process_set)
    ins = _inputs(names, tensors)
    outs = ins if in_place else [torch.empty_like(each) for each in ins]
    details = [{"root": root, "group": group}] * len(names)
    return _start(lib.HVD_BROADCAST, names, ins, outs, details, tensors, in_place)


def rows_of_all(name: str, names, tensors, process_set: ProcessSet) -> np.ndarray:
    """Return how many rows each rank (a row) brings of each tensor (a column). Collective."""
    started, rows = _start_rows(name, names, tensors, process_set)
    started.finish()
    return rows


def _start_rows(name: str, names, tensors, process_set: ProcessSet):
    group_of(process_set)  # only its ranks may go on
    for own, tensor in zip(names, tensors):
        check(own, tensor)  # before the other ranks wait for our rows
    return start_gathering([rows_of(tensor.shape) for tensor in tensors], name, process_set)


def staged_allgather(name: str, names, tensors, process_set: ProcessSet) -> Handle:
    """Gather tensors; how many rows come is found out first, while the caller goes on."""
    started, rows = _start_rows(name, names, tensors, process_set)
    return staged(started, lambda: allgather(names, tensors, rows.sum(axis=0), process_set))


def allgather(names, tensors, rows: Sequence[int], process_set: ProcessSet) -> Handle:
    """Gather tensors whose ranks have so many rows in all."""
    ins = _inputs(names, tensors)
    outs = [each.new_empty((int(n), *each.shape[1:])) for n, each in zip(rows, ins)]
    details = [{"group": group_of(process_set), "out_rows": int(n)} for n in rows]
    return _start(lib.HVD_ALLGATHER, names, ins, outs, details)


def reducescatter(names, tensors, op, scales, process_set: ProcessSet) -> Handle:
    """Reduce; the results are this rank's rows."""
    ins = _inputs(names, tensors)
    shapes = [part_shape(each.shape, process_set) for each in ins]
    outs = [each.new_empty(shape) for each, shape in zip(ins, shapes)]
    of_all = reduction(op, scales, process_set)
    details = [{**of_all, "out_rows": rows_of(shape)} for shape in shapes]
    return _start(lib.HVD_REDUCESCATTER, names, ins, outs, details)


def splits_of_all(name: str, tensor, splits, process_set: ProcessSet) -> np.ndarray:
    """Return how many rows go from each rank (a row) to each other (a column). Collective."""
    group_of(process_set)  # only its ranks may go on
    check(name, tensor)  # before the other ranks wait for our splits
    return all_splits(tensor.shape, splits, name, process_set)[0]


def staged_alltoall(name: str, tensor, splits, process_set: ProcessSet) -> Handle:
    """Exchange rows; how many come is found out first, while the caller goes on.

    The result is a pair: a list of the rows, and the matrix of row counts.
    """
    group_of(process_set)
    check(name, tensor)

    def begin(matrix: np.ndarray) -> Handle:
        return alltoall(name, tensor, matrix, process_set).then(lambda outs: (outs, matrix))

    return rows.staged_alltoall(tensor.shape, splits, name, process_set, begin)


def received(matrix: np.ndarray, process_set: ProcessSet) -> torch.Tensor:
    """Return how many rows come from each rank, as int32."""
    return torch.tensor(matrix[:, process_set.rank()], dtype=torch.int32)


def alltoall(name: str, tensor, matrix: np.ndarray, process_set: ProcessSet) -> Handle:
    """Exchange rows: so many from each rank (a row of the matrix) to each other (a column)."""
    (given,) = _inputs([name], [tensor])
    rows = int(matrix[:, process_set.rank()].sum())
    details = {"group": group_of(process_set), "out_rows": rows, "splits": matrix}
    out = given.new_empty((rows, *given.shape[1:]))
    return _start(lib.HVD_ALLTOALL, [name], [given], [out], [details])


def reduction(op: int, scales: Sequence[float], process_set: ProcessSet) -> dict:
    """Return the members of ``hvd_tensor`` of what reduces."""
    prescale, postscale = scales
    return {"op": op, "prescale": prescale, "postscale": postscale, "group": group_of(process_set)}


def _inputs(names, tensors) -> List[torch.Tensor]:
    for name, tensor in zip(names, tensors):
        check(name, tensor)
    return [plain(tensor) for tensor in tensors]


def _start(kind, names, ins, outs, details, given=(), in_place: bool = False) -> Handle:
    started = Started(kind, names, memories_of(ins), memories_of(outs), details)

    def finish() -> List[torch.Tensor]:
        started.finish()
        return [_deliver(*each) for each in zip(given, outs)] if in_place else outs

    return Handle(started.done, finish)


@torch.no_grad()
def _deliver(tensor: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """Put the result into the tensor, unless it lies there already."""
    if tensor.data_ptr() != result.data_ptr():
        tensor.copy_(result)
    return tensor
