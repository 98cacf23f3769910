"""allreduce, broadcast and allgather on MXNet arrays, ``mx.nd`` or ``mx.np``, on CPUs.

All are asynchronous, like MXNet's own operators: they return at once, and ``wait_to_read()`` or any
use of the result waits. Every rank must make the call, with arrays of the same shape and dtype;
tensors are paired by ``name``, and without one by the line of the script that calls. Dtypes:
float16, bfloat16, float32, float64, uint8, int8, int32, int64, bool. What ranks disagree on is
raised as MXNetError at the wait, on every rank, and the job goes on.
"""

from typing import Optional

import mxnet as mx

from hvdlite import numpy as collectives
from hvdlite._native import lib
from hvdlite.groups import ProcessSet, global_process_set
from hvdlite.mxnet.engine import push, validate
from hvdlite.names import tensor_name
from hvdlite.numpy import Average, Sum


def allreduce(
    tensor,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: Optional[int] = None,
):
    """Return ``op`` over all ranks of ``tensor * prescale_factor``, times ``postscale_factor``.

    :param tensor: array of any shape, 0-d and empty ones too; it stays as it is.
    :param average: the older spelling of ``op``: True for Average, False for Sum.
    :param priority: higher goes first among tensors that wait.
    :param process_set: the ranks that take part; only they make the call.
    :param op: ``hvd.Average`` (the default; integers are divided toward zero) or ``hvd.Sum``
        (logical or for bool). float16 and bfloat16 are summed in float32 and rounded once.
    :raises ValueError: at the call: before init, both ``average`` and ``op``, an unsupported dtype
        or storage type, a bool average.
    """
    return allreduce_(
        _copy(tensor), average, name, priority, prescale_factor, postscale_factor, process_set, op
    )


def allreduce_(
    tensor,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: Optional[int] = None,
):
    """Do what :func:`allreduce` does, in place; return ``tensor``."""
    name = tensor_name("allreduce", name, process_set.process_set_id)
    push(
        lib.HVD_ALLREDUCE, name, tensor, priority=priority,
        op=_op(average, op), prescale=prescale_factor, postscale=postscale_factor,
        group=process_set.group(),
    )  # fmt: skip
    return tensor


def broadcast(
    tensor,
    root_rank: int,
    name: Optional[str] = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
):
    """Return rank ``root_rank``'s tensor on every rank; ``tensor`` stays as it is."""
    return broadcast_(_copy(tensor), root_rank, name, priority, process_set)


def broadcast_(
    tensor,
    root_rank: int,
    name: Optional[str] = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
):
    """Replace ``tensor`` on every rank by that of rank ``root_rank``; return it."""
    name = tensor_name("broadcast", name, process_set.process_set_id)
    push(
        lib.HVD_BROADCAST, name, tensor, priority=priority,
        root=process_set.number_of(root_rank), group=process_set.group(),
    )  # fmt: skip
    return tensor


def allgather(
    tensor,
    name: Optional[str] = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
):
    """Return the tensors of all ranks joined along the first dimension, which may differ by rank.

    A 0-d tensor counts as one row. Waits until every rank has made the call, since only then the
    shape is known; the data itself follows asynchronously.
    """
    name = tensor_name("allgather", name, process_set.process_set_id)
    validate(lib.HVD_ALLGATHER, name, tensor)  # before the other ranks wait for our rows
    rows = tensor.shape[0] if tensor.shape else 1
    rows = sum(collectives.gather_rows(rows, name, process_set))
    is_numpy = isinstance(tensor, mx.np.ndarray)
    out = (mx.np if is_numpy else mx.nd).empty(
        (rows, *tensor.shape[1:]), dtype=tensor.dtype, ctx=tensor.context
    )
    push(
        lib.HVD_ALLGATHER, name, out, tensor, priority=priority, out_rows=rows,
        group=process_set.group(),
    )  # fmt: skip
    return out


def _copy(tensor):
    if not isinstance(tensor, mx.nd.NDArray):
        raise ValueError(f"expected an MXNet NDArray, got {type(tensor).__name__}")
    with mx.util.np_shape():  # also outside of it 0-d and empty arrays may come
        return tensor.copy()


def _op(average: Optional[bool], op: Optional[int]) -> int:
    if average is not None and op is not None:
        raise ValueError("give op or average, not both")
    if average is not None:
        return Average if average else Sum
    if op not in (None, Average, Sum):
        raise ValueError(f"op is {op!r}: expected hvdlite.Average or hvdlite.Sum")
    return Average if op is None else op
