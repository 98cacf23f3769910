"""The collectives of ``ops`` that return a handle at once, for ``poll`` and ``synchronize``.

Arguments and errors are those of the calls that wait; what is wrong with an argument is raised at
once. They have no gradient. Tensors must stay as they are until the work is done.
"""

from typing import Optional, Sequence

from hvdlite.handles import Handle
from hvdlite.names import group_names, tensor_name
from hvdlite.process_sets.process_set import ProcessSet, global_process_set
from hvdlite.reduce_ops import Average, op_of
from hvdlite.torch import exchange


def one_name(kind: str, name: Optional[str], process_set: ProcessSet) -> list:
    """Return the full name of a call's only tensor, in a list."""
    return [tensor_name(kind, name, process_set.process_set_id)]


def full_names(kind: str, name: Optional[str], tensors: Sequence, process_set: ProcessSet) -> list:
    """Return the full names of several tensors of a call."""
    return group_names(tensor_name(kind, name, process_set.process_set_id), len(tensors))


def first(results: list):
    """Return the only result."""
    return results[0]


def allreduce_async(
    tensor,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start :func:`allreduce`; return a handle."""
    names = one_name("allreduce", name, process_set)
    scales = prescale_factor, postscale_factor
    return exchange.allreduce(
        names, [tensor], op_of(average, op), scales, process_set, in_place=False
    ).then(first)


def allreduce_async_(
    tensor,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start :func:`allreduce_`; return a handle."""
    names = one_name("allreduce", name, process_set)
    scales = prescale_factor, postscale_factor
    return exchange.allreduce(
        names, [tensor], op_of(average, op), scales, process_set, in_place=True
    ).then(first)


def grouped_allreduce_async(
    tensors: Sequence,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start :func:`grouped_allreduce`; return a handle."""
    names = full_names("allreduce", name, tensors, process_set)
    scales = prescale_factor, postscale_factor
    return exchange.allreduce(
        names, tensors, op_of(average, op), scales, process_set, in_place=False
    )


def grouped_allreduce_async_(
    tensors: Sequence,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start :func:`grouped_allreduce_`; return a handle."""
    names = full_names("allreduce", name, tensors, process_set)
    scales = prescale_factor, postscale_factor
    return exchange.allreduce(
        names, tensors, op_of(average, op), scales, process_set, in_place=True
    )


def broadcast_async(
    tensor,
    root_rank: int,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start :func:`broadcast`; return a handle."""
    names = one_name("broadcast", name, process_set)
    return exchange.broadcast(names, [tensor], root_rank, process_set, in_place=False).then(first)


def broadcast_async_(
    tensor,
    root_rank: int,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start :func:`broadcast_`; return a handle."""
    names = one_name("broadcast", name, process_set)
    return exchange.broadcast(names, [tensor], root_rank, process_set, in_place=True).then(first)


def allgather_async(
    tensor, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Start :func:`allgather`; return a handle."""
    names = one_name("allgather", name, process_set)
    return _allgather(names, [tensor], process_set).then(first)


def grouped_allgather_async(
    tensors: Sequence, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Start :func:`grouped_allgather`; return a handle."""
    return _allgather(full_names("allgather", name, tensors, process_set), tensors, process_set)


def _allgather(names, tensors, process_set) -> Handle:
    if not names:
        return Handle(lambda: True, list)
    rows = exchange.rows_of_all(names[0], names, tensors, process_set)
    return exchange.allgather(names, tensors, rows.sum(axis=0), process_set)


def alltoall_async(
    tensor,
    splits: Optional[Sequence[int]] = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start :func:`alltoall`; return a handle."""
    (full,) = one_name("alltoall", name, process_set)
    matrix = exchange.splits_of_all(full, tensor, splits, process_set)
    handle = exchange.alltoall(full, tensor, matrix, process_set).then(first)
    if splits is None:
        return handle
    return handle.then(lambda out: (out, exchange.received(matrix, process_set)))


def reducescatter_async(
    tensor,
    name: Optional[str] = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Start :func:`reducescatter`; return a handle."""
    names = one_name("reducescatter", name, process_set)
    scales = prescale_factor, postscale_factor
    return exchange.reducescatter(names, [tensor], op_of(None, op), scales, process_set).then(first)


def grouped_reducescatter_async(
    tensors: Sequence,
    name: Optional[str] = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Start :func:`grouped_reducescatter`; return a handle."""
    names = full_names("reducescatter", name, tensors, process_set)
    scales = prescale_factor, postscale_factor
    return exchange.reducescatter(names, tensors, op_of(None, op), scales, process_set)
