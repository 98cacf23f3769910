"""Collectives on MXNet arrays as they are pushed: several as one operation, by their full names.

What each needs to know of the other ranks first, as the rows that they bring, its caller has asked.
"""

from typing import List, Sequence, Tuple

import mxnet as mx
import numpy as np

from hvdlite._native import lib
from hvdlite.collectives import gather_numbers
from hvdlite.mxnet.push import (
    Settings,
    describe_allreduce,
    push,
    push_group,
    push_group_in_place,
    push_in_place,
    validate,
)
from hvdlite.process_sets.process_set import ProcessSet
from hvdlite.row_splits import alike, fingerprint, part_shape, rows_of


def allreduce_(names, tensors, op, scales, priority: int, process_set: ProcessSet):
    """Reduce in place."""
    settings = Settings(op, *scales, priority, process_set.group())
    if len(names) == 1:
        push_in_place(describe_allreduce(names[0], settings), tensors[0])
    else:
        push_group_in_place(names, tensors, settings)
    return tensors


def broadcast_(name: str, tensor, root_rank: int, priority: int, process_set: ProcessSet):
    """Broadcast in place."""
    root, group = process_set.number_of(root_rank), process_set.group()
    push(lib.HVD_BROADCAST, name, tensor, priority=priority, root=root, group=group)
    return tensor


def rows_of_all(name: str, names, tensors, process_set: ProcessSet) -> Tuple[np.ndarray, bool]:
    """Return how many rows each rank (a row) brings of each tensor (a column); are they alike else?

    Collective.
    """
    for own, tensor in zip(names, tensors):
        validate(lib.HVD_ALLGATHER, own, tensor)  # before the other ranks wait for our rows
    own = [(rows_of(tensor.shape), columns(tensor)) for tensor in tensors]
    gathered = gather_numbers(own, name, process_set)
    return gathered[..., 0], alike(gathered[..., 1])


def alike_to_scatter(
    name: str, ask: bool, names, tensors, op, scales, priority: int, process_set: ProcessSet
) -> bool:
    """Tell whether ranks bring the same to a reducescatter. Collective; not ``ask``: say yes.

    :raises ValueError: what this rank brings can't be right.
    """
    how = reduction(op, scales, priority, process_set)
    for own, tensor in zip(names, tensors):
        validate(lib.HVD_REDUCESCATTER, own, tensor, **how)
    own = [(rows_of(tensor.shape), columns(tensor, op, scales)) for tensor in tensors]
    return not ask or alike(gather_numbers(own, name, process_set))


def columns(tensor, *more) -> int:
    """Return the fingerprint of what must be the same on ranks that bring rows."""
    return fingerprint(np.dtype(tensor.dtype).name, tensor.shape[1:], *more)


def raise_now(arrays: Sequence) -> None:
    """Raise what is wrong with arrays under way, of which ranks are known to disagree."""
    errors = []
    for array in arrays:
        try:
            array.wait_to_read()
        except mx.MXNetError as error:  # each raises it once: here, not in a later line
            errors.append(error)
    if errors:
        raise errors[0]


def allgather(names, tensors, rows, priority: int, process_set: ProcessSet) -> List:
    """Gather tensors whose ranks have so many rows in all."""
    outs = [empty((int(n), *tensor.shape[1:]), tensor) for n, tensor in zip(rows, tensors)]
    of_all = {"priority": priority, "group": process_set.group()}
    details = [{**of_all, "out_rows": int(n)} for n in rows]
    push_group(lib.HVD_ALLGATHER, names, outs, details, tensors)
    return outs


def reducescatter(names, tensors, op, scales, priority: int, process_set: ProcessSet) -> List:
    """Return this rank's rows of the reduced tensors."""
    of_all = reduction(op, scales, priority, process_set)
    shapes = [part_shape(tensor.shape, process_set) for tensor in tensors]
    outs = [empty(shape, tensor) for shape, tensor in zip(shapes, tensors)]
    details = [{**of_all, "out_rows": shape[0]} for shape in shapes]
    push_group(lib.HVD_REDUCESCATTER, names, outs, details, tensors)
    return outs


def alltoall(name: str, tensor, matrix: np.ndarray, priority: int, process_set: ProcessSet):
    """Exchange rows: so many from each rank (a row of the matrix) to each other (a column)."""
    rows = int(matrix[:, process_set.rank()].sum())
    out = empty((rows, *tensor.shape[1:]), tensor)
    push(
        lib.HVD_ALLTOALL, name, out, tensor, priority=priority, out_rows=rows,
        splits=matrix, group=process_set.group(),
    )  # fmt: skip
    return out


def reduction(op, scales: Sequence[float], priority: int, process_set: ProcessSet) -> dict:
    """Return the details of a push that reduces."""
    return {
        "op": op, "prescale": scales[0], "postscale": scales[1],
        "priority": priority, "group": process_set.group(),
    }  # fmt: skip


def module_of(tensor):
    """Return the module that the array is of: ``mx.nd`` or ``mx.np``."""
    return mx.np if isinstance(tensor, mx.np.ndarray) else mx.nd


def empty(shape: Sequence[int], tensor):
    """Return an array of that shape, else like the tensor."""
    with mx.util.np_shape():  # also outside of it 0-d and empty arrays may come
        return module_of(tensor).empty(shape, dtype=tensor.dtype, ctx=tensor.context)


def copy(tensor):
    """Return a copy of the array; ValueError for what is none."""
    if not isinstance(tensor, mx.nd.NDArray):
        raise ValueError(f"expected an MXNet NDArray, got {type(tensor).__name__}")
    with mx.util.np_shape():
        return tensor.copy()
