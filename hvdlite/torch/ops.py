"""Collectives on PyTorch tensors, on CPUs and on CUDA (:mod:`hvdlite.torch.delegate`).

Every rank must make the call, with tensors of the same shape and dtype. Ranks match tensors by
``name``, or without a name by the line of the script that makes the call. The dtypes are those of
:mod:`hvdlite.numpy`, with PyTorch's bfloat16. Any strides are allowed.

Each call waits until the work is done. A call whose name ends in ``_async`` does not wait: it
returns a handle, for ``poll`` and ``synchronize``, or raises for a wrong argument. The script must
not change the tensors until the work is done.

Calls that wait and are not in place have gradients, scaled as in Horovod: docs/training.md,
"Gradients through collectives". Backward must reach a result on every rank or on no rank.

``grouped_...`` does the same for several tensors, which are sent together.
"""

import functools
import inspect
from typing import Any, Callable, List, Optional, Sequence

import torch

from hvdlite import numpy as collectives
from hvdlite.core.arguments import check_compressor, op_of
from hvdlite.core.handles import Handle, ended, started, waiting
from hvdlite.core.names import group_names, recurring_name, tensor_name
from hvdlite.core.native import HvdliteError
from hvdlite.core.process_set import ProcessSet, global_process_set
from hvdlite.core.reduce_ops import Average
from hvdlite.torch import differentiable, exchange
from hvdlite.torch.tensors import written
from hvdlite.training.codecs import NoneCompressor, compress

HorovodInternalError = HvdliteError  # the name that Horovod's scripts catch


def allreduce(
    tensor, average: Optional[bool] = None, name: Optional[str] = None, compression=NoneCompressor,
    op: Optional[int] = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
):  # fmt: skip
    """Return ``op`` over all ranks of ``tensor * prescale_factor``, times ``postscale_factor``.

    :param tensor: of any shape; it does not change.
    :param average: the older form of ``op``: True for Average, False for Sum.
    :param name: the same on every rank; no other tensor in progress may have this name.
    :param compression: ``hvd.Compression.none``, ``fp16``, ``bf16``, or a class like them.
    :param op: ``hvd.Average`` (the default), ``Sum``, ``Min``, ``Max``, ``Product`` or ``Adasum``,
        as for ``hvdlite.allreduce``. Sum and Average have a gradient.
    :param prescale_factor: finite and the same on every rank, as ``postscale_factor``. Integers are
        truncated after the prescaling, before the sum; int64 wraps before an Average divides.
    :param process_set: the ranks that take part; only these ranks make the call.
    :raises ValueError: before anything is sent, for a wrong argument: a tensor that is sparse or on
        another device, an unsupported dtype, both ``average`` and ``op``.
    :raises hvdlite.HvdliteError: on every rank, if ranks disagree, or a rank has failed or left.
    """
    if name is None:
        name = recurring_name("allreduce", process_set)
    call = average, name, op, prescale_factor, postscale_factor, process_set
    as_is = compression is NoneCompressor
    recorded = getattr(tensor, "requires_grad", False) and torch.is_grad_enabled()
    result = exchange.again(tensor, call, False) if as_is and not recorded else None
    if result is None:
        result = _start_allreduce(tensor, average, name, compression, *call[2:]).synchronize()
        if as_is:
            exchange.note(tensor, call)
    return result


def allreduce_(
    tensor, average: Optional[bool] = None, name: Optional[str] = None, op: Optional[int] = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
):  # fmt: skip
    """Like :func:`allreduce`, but in place and without a gradient; return ``tensor``.

    If autograd has saved the tensor, backward raises an error, as after PyTorch's own in-place
    operators.
    """
    if name is None:
        name = recurring_name("allreduce", process_set)
    call = average, name, op, prescale_factor, postscale_factor, process_set
    if exchange.again(tensor, call, True) is None:
        _start_allreduce_(tensor, *call).synchronize()
        exchange.note(tensor, call)
    else:
        written((tensor,))
    return tensor


@waiting
def grouped_allreduce(
    tensors: Sequence, average: Optional[bool] = None, name: Optional[str] = None,
    compression=NoneCompressor, op: Optional[int] = None, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> List:  # fmt: skip
    """Do what :func:`allreduce` does for each of the tensors."""
    names = _full_names("allreduce", name, tensors, process_set)
    op, scales = op_of(average, op), (prescale_factor, postscale_factor)
    return _allreduce(names, tensors, compression, op, scales, process_set)


@waiting
def grouped_allreduce_(
    tensors: Sequence, average: Optional[bool] = None, name: Optional[str] = None,
    op: Optional[int] = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> List:  # fmt: skip
    """Do what :func:`allreduce_` does for each of the tensors."""
    names = _full_names("allreduce", name, tensors, process_set)
    op, scales = op_of(average, op), (prescale_factor, postscale_factor)
    return _allreduce_(names, tensors, op, scales, process_set)


@waiting
def broadcast(
    tensor, root_rank: int, name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
):  # fmt: skip
    """Return rank ``root_rank``'s tensor on every rank; ``tensor`` does not change.

    :param tensor: of the same shape and dtype on every rank.
    :param root_rank: a rank of the job, even if ``process_set`` is given.
    :raises ValueError: as :func:`allreduce`; ``root_rank`` does not take part.
    :raises HvdliteError: as :func:`allreduce`.
    """
    (full,) = _one_name("broadcast", name, process_set)
    if differentiable.is_recorded([tensor]):
        return ended(differentiable.Broadcast.apply(full, root_rank, process_set, tensor))
    return exchange.broadcast([full], [tensor], root_rank, process_set).then(_first)


@waiting
def broadcast_(
    tensor, root_rank: int, name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
):  # fmt: skip
    """Overwrite ``tensor`` on every rank with rank ``root_rank``'s tensor; return ``tensor``.

    Arguments and errors are as for :func:`broadcast`.
    """
    names = _one_name("broadcast", name, process_set)
    return exchange.broadcast(names, [tensor], root_rank, process_set, in_place=True).then(_first)


@waiting
def allgather(tensor, name: Optional[str] = None, process_set: ProcessSet = global_process_set):
    """Return the tensors of all ranks, joined along the first dimension.

    :param tensor: of the same dtype and shape on every rank, but the first dimension may differ; a
        0-d tensor counts as one row.
    :return: a tensor of shape (rows of all ranks, ...), in rank order.
    :raises ValueError: as :func:`allreduce`.
    :raises HvdliteError: as :func:`allreduce`.
    """
    names = _one_name("allgather", name, process_set)
    return _allgather(names, [tensor], process_set).then(_first)


@waiting
def grouped_allgather(
    tensors: Sequence, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> List:
    """Do what :func:`allgather` does for each of the tensors."""
    return _allgather(_full_names("allgather", name, tensors, process_set), tensors, process_set)


@waiting
def alltoall(
    tensor, splits: Optional[Sequence[int]] = None, name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
):  # fmt: skip
    """Send rows to every rank; return the rows that this rank receives, in rank order.

    :param tensor: of at least one dimension; only the first dimension may differ between ranks.
    :param splits: the number of rows for each rank, the first rows for rank 0; remaining rows are
        not sent. Without ``splits`` every rank gets the same number of rows.
    :return: the rows; with ``splits`` a pair: the rows, and each rank's number of rows as int32.
    :raises ValueError: as :func:`allreduce`; also if the splits, or the number of ranks, do not fit
        the rows.
    """
    (full,) = _one_name("alltoall", name, process_set)
    if differentiable.is_recorded([tensor]):
        handle = ended([differentiable.Alltoall.apply(full, splits, process_set, tensor)])
    else:
        handle = exchange.alltoall(full, tensor, splits, process_set)

    def result(pairs):
        ((rows, rows_from),) = pairs
        return rows if splits is None else (rows, torch.as_tensor(rows_from).int())

    return handle.then(result)


@waiting
def reducescatter(
    tensor, name: Optional[str] = None, compression=NoneCompressor, op: int = Average,
    process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
):  # fmt: skip
    """Return this rank's rows of the result of :func:`allreduce`; any ``op`` except Adasum.

    Ranks get the same number of rows, in rank order; if the rows do not divide evenly, the first
    ranks get one more row. ``tensor`` does not change.

    :param tensor: of at least one dimension, of the same shape on every rank.
    :param op: this and all other arguments are as for :func:`allreduce`.
    :raises ValueError: as :func:`allreduce`; also if ``tensor`` is 0-d.
    """
    names = _one_name("reducescatter", name, process_set)
    op, scales = op_of(None, op), (prescale_factor, postscale_factor)
    return _reducescatter(names, [tensor], compression, op, scales, process_set).then(_first)


@waiting
def grouped_reducescatter(
    tensors: Sequence, name: Optional[str] = None, compression=NoneCompressor, op: int = Average,
    process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> List:  # fmt: skip
    """Do what :func:`reducescatter` does for each of the tensors."""
    names = _full_names("reducescatter", name, tensors, process_set)
    op, scales = op_of(None, op), (prescale_factor, postscale_factor)
    return _reducescatter(names, tensors, compression, op, scales, process_set)


def _start_allreduce(
    tensor, average=None, name=None, compression=NoneCompressor, op=None, prescale_factor=1.0,
    postscale_factor=1.0, process_set=global_process_set,
) -> Any:  # fmt: skip
    names = _one_name("allreduce", name, process_set)
    op, scales = op_of(average, op), (prescale_factor, postscale_factor)
    return _allreduce(names, [tensor], compression, op, scales, process_set).then(_first)


def _start_allreduce_(
    tensor, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0,
    process_set=global_process_set,
) -> Any:  # fmt: skip
    names = _one_name("allreduce", name, process_set)
    op, scales = op_of(average, op), (prescale_factor, postscale_factor)
    return _allreduce_(names, [tensor], op, scales, process_set).then(_first)


def _without_gradient(start: Callable[..., Handle]) -> Callable[..., Handle]:
    @functools.wraps(start)
    def form(*args, **kwargs) -> Handle:
        # not a decorator, because an unnamed tensor would be named by the decorator's line
        with torch.no_grad():
            return start(*args, **kwargs)

    return form


def _uncompressed(start: Callable[..., Handle]) -> Callable[..., Handle]:
    """Return ``start`` without its argument ``compression``."""
    signature = inspect.signature(start)
    place = list(signature.parameters).index("compression")
    rest = [each for each in signature.parameters.values() if each.name != "compression"]

    @functools.wraps(start)
    def form(*args, **kwargs) -> Handle:
        compression = [NoneCompressor] if len(args) > place else []
        return start(*args[:place], *compression, *args[place:], **kwargs)

    vars(form).update(__signature__=signature.replace(parameters=rest))
    return form


allreduce_async = _uncompressed(_without_gradient(started(allreduce, _start_allreduce)))
grouped_allreduce_async = _uncompressed(_without_gradient(grouped_allreduce.start))
reducescatter_async = _uncompressed(_without_gradient(reducescatter.start))
grouped_reducescatter_async = _uncompressed(_without_gradient(grouped_reducescatter.start))
broadcast_async = _without_gradient(broadcast.start)
allgather_async = _without_gradient(allgather.start)
grouped_allgather_async = _without_gradient(grouped_allgather.start)
alltoall_async = _without_gradient(alltoall.start)

allreduce_async_ = started(allreduce_, _start_allreduce_)
grouped_allreduce_async_ = grouped_allreduce_.start
broadcast_async_ = broadcast_.start


def join(device: int = -1, process_set: ProcessSet = global_process_set) -> int:
    """Tell the other ranks that this rank has no more data; wait until all ranks have joined.

    Meanwhile this rank contributes zeros to the other ranks' allreduces (``hvdlite.numpy.join``).

    :param device: as in Horovod; ignored.
    :return: the last rank that joined.
    """
    return collectives.join(process_set)


def _one_name(kind: str, name: Optional[str], process_set: ProcessSet) -> List[str]:
    return [tensor_name(kind, name, process_set)]


def _full_names(kind: str, name: Optional[str], tensors, process_set: ProcessSet) -> List[str]:
    return group_names(tensor_name(kind, name, process_set), tensors)


def _first(results: Sequence):
    return results[0]


# The functions below return a Handle; @waiting waits for the Handle and returns its result.


def _reduced(function, start, names, tensors, compression, op, scales, process_set) -> Any:
    check_compressor(compression)
    tensors, decompress = compress(tensors, compression)
    if differentiable.is_recorded(tensors):
        return ended(decompress(function.apply(names, op, scales, process_set, *tensors)))
    return start(names, tensors, op, scales, process_set).then(decompress)


def _allreduce(*call) -> Any:
    return _reduced(differentiable.Allreduce, exchange.allreduce, *call)


def _allreduce_(names, tensors, op, scales, process_set) -> Any:
    return exchange.allreduce(names, tensors, op, scales, process_set, in_place=True)


def _allgather(names, tensors, process_set) -> Any:
    if not names:
        return ended([])
    if differentiable.is_recorded(tensors):
        return ended(list(differentiable.Allgather.apply(names, process_set, *tensors)))
    handle = exchange.allgather(names, tensors, process_set)
    return handle.then(lambda pairs: [rows for rows, _ in pairs])


def _reducescatter(*call) -> Any:
    return _reduced(differentiable.Reducescatter, exchange.reducescatter, *call)
