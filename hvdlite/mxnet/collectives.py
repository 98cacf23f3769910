"""Collectives on MXNet arrays, pushed to MXNet's engine. Callers pass the tensors' full names.

MXNet must know the shape of a result when the call returns. So the ranks exchange the row counts
before they push an allgather or alltoall. No other framework's adapter needs this exchange.
"""

import zlib
from typing import List, Sequence, Tuple

import mxnet as mx
import numpy as np

from hvdlite.core import collectives
from hvdlite.core.collectives import DTYPES, gather_numbers
from hvdlite.core.native import HvdliteValueError, lib
from hvdlite.core.process_set import ProcessSet, group_of
from hvdlite.core.splits import part_shape, rows_of, split_rows
from hvdlite.mxnet.push import InPlace, Settings, describe_allreduce, push, push_in_place, validate


def allreduce_(names, tensors, op, scales, priority: int, process_set: ProcessSet, states=0):
    """Reduce the tensors in place and return them."""
    prescale, postscale = scales
    settings = Settings(op, prescale, postscale, priority, group_of(process_set), states)
    if len(names) == 1:
        push_in_place(describe_allreduce(names[0], settings), tensors[0])
    elif names:
        InPlace(names, settings).push(tensors)
    return tensors


def broadcast_(name: str, tensor, root_rank: int, priority: int, process_set: ProcessSet):
    """Overwrite the tensor with rank ``root_rank``'s tensor, and return it."""
    root, group = process_set.number_of(root_rank), group_of(process_set)
    details = {"priority": priority, "root": root, "group": group}
    push(lib.HVD_BROADCAST, [name], [tensor], [details])
    return tensor


def rows_of_all(
    name: str, names, tensors, priority: int, process_set: ProcessSet
) -> Tuple[np.ndarray, bool]:
    """Return a matrix of row counts, with a row per rank and a column per tensor. Collective.

    The second value tells whether the dtype and all other dimensions are equal on all ranks.
    """
    # Check the tensors first: an error later would leave the other ranks waiting for row counts.
    for own, tensor in zip(names, tensors):
        validate(lib.HVD_ALLGATHER, own, tensor, priority=priority)
    own = [(rows_of(tensor.shape), columns(tensor)) for tensor in tensors]
    gathered = gather_numbers(own, name, process_set)
    return gathered[..., 0], _are_alike(gathered[..., 1])


def alike_to_scatter(
    name: str, ask: bool, names, tensors, op, scales, priority: int, process_set: ProcessSet
) -> bool:
    """Return True if all ranks submit equal shapes, dtypes and ops to a reducescatter. Collective.

    :param ask: False: return True without asking the other ranks.
    :raises ValueError: this rank's tensors or arguments are wrong.
    """
    members = reduction(op, scales, priority, process_set)
    for own, tensor in zip(names, tensors):
        validate(lib.HVD_REDUCESCATTER, own, tensor, **members)
    own = [(rows_of(tensor.shape), columns(tensor, op, scales)) for tensor in tensors]
    return not ask or _are_alike(gather_numbers(own, name, process_set))


def columns(tensor, *more) -> int:
    """Return a hash of what must be equal on all ranks: dtype, columns and ``more``.

    The collective itself also reports a difference, but only when a rank waits for the result.
    """
    return zlib.crc32(repr((np.dtype(tensor.dtype).name, tensor.shape[1:], *more)).encode())


def _are_alike(gathered: np.ndarray) -> bool:
    """Return True if the rows of ``gathered``, one row from each rank, are equal."""
    return bool((gathered == gathered[0]).all())


def raise_now(arrays: Sequence) -> None:
    """Wait for the arrays of a collective on which ranks disagree; raise the first error."""
    errors = []
    for array in arrays:
        try:
            array.wait_to_read()
        # MXNet raises an array's error only once: read the errors of all arrays here, so that
        # no later use of an array raises.
        except mx.MXNetError as error:
            errors.append(error)
    if errors:
        raise errors[0]


def allgather(names, tensors, rows, priority: int, process_set: ProcessSet) -> List:
    """Return each tensor's rows of all ranks, joined along the first dimension.

    :param rows: for each tensor, the sum of its row counts over all ranks.
    """
    outs = [empty((int(n), *tensor.shape[1:]), tensor) for n, tensor in zip(rows, tensors)]
    of_all = {"priority": priority, "group": group_of(process_set)}
    details = [{**of_all, "out_rows": int(n)} for n in rows]
    push(lib.HVD_ALLGATHER, names, outs, details, tensors)
    return outs


def reducescatter(names, tensors, op, scales, priority: int, process_set: ProcessSet) -> List:
    """Return this rank's rows of the reduced tensors."""
    of_all = reduction(op, scales, priority, process_set)
    shapes = [part_shape(tensor.shape, process_set) for tensor in tensors]
    outs = [empty(shape, tensor) for shape, tensor in zip(shapes, tensors)]
    details = [{**of_all, "out_rows": shape[0]} for shape in shapes]
    push(lib.HVD_REDUCESCATTER, names, outs, details, tensors)
    return outs


def all_splits(name: str, tensor, splits, process_set: ProcessSet) -> Tuple[np.ndarray, bool]:
    """Return a matrix: rank i sends ``matrix[i, j]`` rows to rank j. Collective.

    The second value tells whether the dtype and all other dimensions are equal on all ranks.

    :raises HvdliteValueError: on every rank, with the same text, if some rank's splits are wrong.
    """
    own, wrong = [0] * process_set.size(), {}
    try:
        own = split_rows(tensor.shape, splits, name, process_set).tolist()
    except HvdliteValueError as error:
        wrong = {"failed": str(error)}
    gathered = gather_numbers([*own, columns(tensor)], name, process_set, **wrong)
    return np.ascontiguousarray(gathered[:, :-1]), _are_alike(gathered[:, -1])


def alltoall(name: str, tensor, matrix: np.ndarray, priority: int, process_set: ProcessSet):
    """Return the received rows; rank i sends ``matrix[i, j]`` rows to rank j."""
    rows = int(matrix[:, process_set.rank()].sum())
    out = empty((rows, *tensor.shape[1:]), tensor)
    splits, group = matrix[process_set.rank()].copy(), group_of(process_set)
    details = {"priority": priority, "out_rows": rows, "splits": splits, "group": group}
    push(lib.HVD_ALLTOALL, [name], [out], [details], [tensor])
    return out


def reduction(op, scales: Sequence[float], priority: int, process_set: ProcessSet) -> dict:
    """Return the ``details`` that :func:`push` takes for an allreduce or reducescatter."""
    return {**collectives.reduction(op, scales, process_set), "priority": priority}


def module_of(tensor):
    """Return the array's module: ``mx.nd`` or ``mx.np``."""
    return mx.np if isinstance(tensor, mx.np.ndarray) else mx.nd


def nbytes_of(array) -> int:
    """Return the size of the array's values in bytes."""
    return array.size * np.dtype(array.dtype).itemsize


def is_shareable(array) -> bool:
    """Return True if the array can lie in shared memory and the core can reduce its dtype."""
    known = array.stype == "default" and np.dtype(array.dtype) in DTYPES
    return known and array.size > 0 and array.context.device_type.startswith("cpu")


def empty(shape: Sequence[int], tensor):
    """Return an uninitialized array of this shape, of the tensor's module, dtype and context."""
    with mx.util.np_shape():  # allows 0-d and empty arrays
        return module_of(tensor).empty(shape, dtype=tensor.dtype, ctx=tensor.context)


def copy(tensor):
    """Return a copy of the tensor; raise ValueError if the tensor is not an NDArray."""
    if not isinstance(tensor, mx.nd.NDArray):
        raise ValueError(f"expected an MXNet NDArray, got {type(tensor).__name__}")
    with mx.util.np_shape():
        return tensor.copy()
