"""Starts collectives on several PyTorch tensors together; callers pass the tensors' full names.

Each function returns a handle; the handle's result is the list of result tensors.
"""

from typing import Any, Callable, List, Optional, Tuple

import numpy as np
import torch

from hvdlite.core import _prepared, prepared  # type: ignore[attr-defined]
from hvdlite.core.arguments import op_of
from hvdlite.core.collectives import Memory, Started, reduction
from hvdlite.core.grouped import COPIED
from hvdlite.core.handles import Handle
from hvdlite.core.names import tensor_name
from hvdlite.core.native import lib
from hvdlite.core.outs import overlapping
from hvdlite.core.process_set import ProcessSet, global_process_set, group_of
from hvdlite.core.splits import part_shape, rows_of, split_members
from hvdlite.torch.tensors import DELEGATED, DTYPES, check, is_staged, memory_of, plain, written


def allreduce(
    names, tensors, op, scales, process_set: ProcessSet, in_place=False, states=0
) -> Handle:
    """Start allreduces. The results are the tensors themselves if in place, else new tensors.

    :param states: a digest of the states that the optimizer has just loaded.
    """
    details = {**reduction(op, scales, process_set), "states": states}
    mover, ins = _inputs(names, tensors, details, process_set)
    outs = _outputs(ins, tensors, in_place, mover)
    call = names, ins, outs, [details] * len(names)
    return _start(mover, lib.HVD_ALLREDUCE, *call, tensors, in_place)


# again(tensor, call, in_place) repeats an allreduce that note() has recorded, and returns the
# result, which has no gradient; None: note() has not recorded this call. call: as for note().
again = _prepared.again_tensor
_prepared.setup(
    {"tensor_type": torch.Tensor, "strided": torch.strided, "empty_like": torch.empty_like}
)


def note(tensor, call: tuple) -> None:
    """Record a call that has passed its checks, so that :func:`again` can repeat it.

    :param call: average, name, op, prescale factor, postscale factor, process set.
    """
    if tensor.device.type not in DELEGATED:
        prepared.note((call, tensor.dtype, tensor.shape), lambda: _described(tensor, *call))


def _described(tensor, average, name, op, before, after, process_set) -> tuple:
    """Return the arguments of a :class:`Prepared`."""
    full = tensor_name("allreduce", name, process_set)
    check(full, tensor)
    members = reduction(op_of(average, op), (before, after), process_set)
    return full, Memory(0, DTYPES[tensor.dtype], tuple(tensor.shape), None), members, process_set


def allreduce_plan(
    tensor, average: Optional[bool] = None, name: Optional[str] = None, op: Optional[int] = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set, out: Optional[torch.Tensor] = None,
) -> Callable[[], torch.Tensor]:  # fmt: skip
    """Return a function without arguments that repeats this ``allreduce`` at less cost.

    ``hvdlite.numpy.allreduce_plan`` describes the function. Autograd does not record its calls.

    :param tensor: a contiguous tensor.
    :param out: a contiguous tensor for the results, which may be ``tensor``.
    :raises ValueError: an argument is wrong; the returned function raises all other errors.
    """
    full, *rest = _described(
        tensor, average, name, op, prescale_factor, postscale_factor, process_set
    )
    check(full, tensor if out is None else out)
    if not _takes_all(tensor if out is None else out, tensor):
        raise ValueError(
            f"tensor '{full}': expected contiguous tensors of one dtype and shape, and an out that "
            "is the tensor or does not overlap it: pass tensor.contiguous(), and a new out"
        )
    planned, source = prepared.Prepared(full, *rest), tensor.data_ptr()

    def plan() -> torch.Tensor:
        result = torch.empty_like(tensor, requires_grad=False) if out is None else out
        prepared.run(planned, source, result.data_ptr(), (tensor, result))
        if out is not None:
            written((out,))
        return result

    return plan


def _takes_all(out: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Return True if the C library can reduce ``tensor`` directly into ``out``."""
    if (out.dtype, out.shape) != (tensor.dtype, tensor.shape):
        return False
    source, target = tensor.data_ptr(), out.data_ptr()
    apart = source == target or abs(source - target) >= tensor.nbytes
    return apart and all(plain(each).data_ptr() == each.data_ptr() for each in (tensor, out))


def broadcast(names, tensors, root_rank: int, process_set: ProcessSet, in_place=False) -> Handle:
    """Start broadcasts. The results are the tensors themselves if in place, else new tensors."""
    details = {"root": process_set.number_of(root_rank), "group": group_of(process_set)}
    mover, ins = _inputs(names, tensors, details, process_set)
    outs = _outputs(ins, tensors, in_place, mover)
    call = names, ins, outs, [details] * len(names)
    return _start(mover, lib.HVD_BROADCAST, *call, tensors, in_place)


def allgather(names, tensors, process_set: ProcessSet, states=0, call="") -> Handle:
    """Start allgathers. Each result is a pair: the rows, and the number of rows from each rank.

    :param call: what ranks must have in common, if the allgathers are parts of another call.
    """
    details = [{"group": group_of(process_set), "states": states, "call": call}] * len(names)
    return _start_open(lib.HVD_ALLGATHER, names, tensors, details, process_set)


def reducescatter(names, tensors, op, scales, process_set: ProcessSet) -> Handle:
    """Start reducescatters. The results are this rank's rows."""
    of_all = reduction(op, scales, process_set)
    mover, ins = _inputs(names, tensors, of_all, process_set)
    shapes = [part_shape(each.shape, process_set) for each in ins]
    outs = [each.new_empty(shape) for each, shape in zip(ins, shapes)]
    details = [{**of_all, "out_rows": rows_of(shape)} for shape in shapes]
    return _start(mover, lib.HVD_REDUCESCATTER, names, ins, outs, details, tensors)


def alltoall(name: str, tensor, splits, process_set: ProcessSet) -> Handle:
    """Start an alltoall. The result is one pair: the rows, and the number of rows of each rank."""
    group = group_of(process_set)  # raises on ranks outside of the set
    check(name, tensor, gpu=True)
    details = {"group": group, **split_members(tensor.shape, splits, name, process_set)}
    return _start_open(lib.HVD_ALLTOALL, [name], [tensor], [details], process_set)


def _inputs(names, tensors, members: dict, process_set: ProcessSet) -> Tuple[Any, List]:
    """Return the mover (None: the tensors go through the host), and contiguous tensors to send."""
    for name, tensor in zip(names, tensors):
        check(name, tensor, gpu=True)
    mover = mover_of(names, tensors, members, process_set)
    return mover, [plain(tensor, stays=mover is not None) for tensor in tensors]


def mover_of(names, tensors, members: dict, process_set: ProcessSet) -> Any:
    """Return ``delegate.mover_for(...)``; import delegate only for tensors that may need it."""
    if not tensors or tensors[0].device.type not in DELEGATED:
        return None
    from hvdlite.torch import delegate

    return delegate.mover_for(names, tensors, members, process_set)


def _outputs(ins, tensors, in_place: bool, mover) -> List[torch.Tensor]:
    """Return the tensors for the results. A staged tensor's result is its copy on the host.

    In place, a tensor that overlaps another tensor of the call gets a new tensor for its result,
    because the collectives run concurrently, and one would read another's result.
    """
    own = [in_place or (mover is None and is_staged(tensor)) for tensor in tensors]
    if in_place and len(ins) > 1:
        own = [not meets for meets in overlapping([(t.data_ptr(), t.nbytes) for t in ins])]
    return [each if mine else torch.empty_like(each) for each, mine in zip(ins, own)]


def _start(mover, kind, names, ins, outs, details, tensors, in_place=False) -> Handle:
    if mover is not None:
        started = mover.start(kind, names, ins, outs, details)
    else:
        memories = list(map(memory_of, ins)), list(map(memory_of, outs))
        started = Started(kind, names, *memories, details)
    if in_place:  # counts a write now, too, because the script may use the tensors before the end
        written(tensors)

    def finish() -> List[torch.Tensor]:
        started.finish()
        if in_place:
            return [_deliver(*each) for each in zip(tensors, outs)]
        return [out.to(tensor.device) for tensor, out in zip(tensors, outs)]

    return Handle(started.done, finish)


def _start_open(kind, names, tensors, details, process_set: ProcessSet) -> Handle:
    mover, ins = _inputs(names, tensors, details[0], process_set)
    members = [{**each, "open": 1} for each in details]
    if mover is not None:
        moved = mover.start(kind, names, ins, [None] * len(ins), members)
        return Handle(moved.done, moved.finish)
    started = Started(kind, names, list(map(memory_of, ins)), [None] * len(ins), members)

    def finish() -> List[Tuple[torch.Tensor, np.ndarray]]:
        started.finish()
        made = [_made(started, number, each, process_set) for number, each in enumerate(ins)]
        return [(rows.to(each.device), rows_from) for each, (rows, rows_from) in zip(tensors, made)]

    return Handle(started.done, finish)


def _made(started: Started, number: int, like: torch.Tensor, process_set: ProcessSet):
    row = like.shape[1:]
    row_bytes = row.numel() * like.element_size()
    memory, rows_from = started.result(number, process_set.size(), row_bytes)
    shape = (int(rows_from.sum()), *row)
    if not len(memory):  # frombuffer refuses empty memory
        return like.new_empty(shape), rows_from
    made = torch.frombuffer(memory, dtype=like.dtype).reshape(shape)
    return (made.clone() if len(memory) < COPIED else made), rows_from


@torch.no_grad()
def _deliver(tensor: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """Copy the result into the tensor, unless the result is in the tensor's memory already."""
    if tensor.data_ptr() != result.data_ptr():
        tensor.copy_(result)
    else:
        written((tensor,))
    return tensor
