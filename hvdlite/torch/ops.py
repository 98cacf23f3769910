"""Collectives on PyTorch tensors, on CPUs.

Every rank must make the call, with tensors of the same shape and dtype; tensors are paired by
``name``, and without one by the line of the script that calls. Dtypes: float16, bfloat16, float32,
float64, uint8, int8, int16, int32, int64, bool; tensors of any strides.

Each call waits until the work is done; one that ends in ``_async`` returns a handle at once, for
``poll`` and ``synchronize``. (Where ranks bring rows, it waits until all have said how many.) Calls
that wait and are not in place have gradients, of Horovod's scale: an allreduce's is reduced as the
tensors were, those of an allgather and a broadcast are averaged over ranks, that of a reducescatter
is gathered, times the number of ranks for a sum. Backward must reach a result on every rank or on
none.

``grouped_...`` does the same for each of several tensors, which are sent together.
"""

from typing import List, Optional, Sequence

from hvdlite import numpy as collectives
from hvdlite.process_sets.process_set import ProcessSet, global_process_set
from hvdlite.reduce_ops import Average, op_of
from hvdlite.torch import differentiable, exchange, handles
from hvdlite.torch.handles import full_names, one_name
from hvdlite.training.codecs import NoneCompressor


def allreduce(
    tensor,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    compression=NoneCompressor,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
):
    """Return ``op`` over all ranks of ``tensor * prescale_factor``, times ``postscale_factor``.

    :param tensor: of any shape; it stays as it is.
    :param average: the older spelling of ``op``: True for Average, False for Sum.
    :param name: the same on every rank; no other tensor under way has it.
    :param compression: ``hvd.Compression.none``, ``fp16``, ``bf16``, or a class like them.
    :param op: ``hvd.Average`` (the default), ``Sum``, ``Min``, ``Max``, ``Product`` or ``Adasum``,
        as for ``hvdlite.allreduce``. Sum and Average have a gradient.
    :param prescale_factor: and ``postscale_factor``: finite, the same on every rank.
    :param process_set: the ranks that take part; only they make the call.
    :raises ValueError: an argument that can't be right, before anything is sent: a tensor that is
        sparse or on a GPU, an unsupported dtype, both ``average`` and ``op``.
    :raises hvdlite.HvdliteError: on every rank: the ranks disagree, or one has failed or left.
    """
    names = one_name("allreduce", name, process_set)
    how = op_of(average, op), (prescale_factor, postscale_factor), process_set
    return _allreduce(names, [tensor], compression, *how)[0]


def allreduce_(
    tensor,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
):
    """Do what :func:`allreduce` does, in place, without a gradient; return ``tensor``."""
    scales = prescale_factor, postscale_factor
    return handles.allreduce_async_(tensor, average, name, op, *scales, process_set).synchronize()


def grouped_allreduce(
    tensors: Sequence,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    compression=NoneCompressor,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> List:
    """Do what :func:`allreduce` does for each of the tensors."""
    names = full_names("allreduce", name, tensors, process_set)
    how = op_of(average, op), (prescale_factor, postscale_factor), process_set
    return _allreduce(names, tensors, compression, *how)


def grouped_allreduce_(
    tensors: Sequence,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> List:
    """Do what :func:`allreduce_` does for each of the tensors."""
    how = average, name, op, prescale_factor, postscale_factor, process_set
    return handles.grouped_allreduce_async_(tensors, *how).synchronize()


def broadcast(
    tensor,
    root_rank: int,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
):
    """Return rank ``root_rank``'s tensor on every rank; ``tensor`` stays as it is.

    :param tensor: of the same shape and dtype on every rank.
    :param root_rank: a rank of the job, also where ``process_set`` is given.
    :raises ValueError: and HvdliteError: as :func:`allreduce`; ``root_rank`` does not take part.
    """
    (full,) = one_name("broadcast", name, process_set)
    if differentiable.is_recorded([tensor]):
        return differentiable.Broadcast.apply(full, root_rank, process_set, tensor)
    handle = exchange.broadcast([full], [tensor], root_rank, process_set, in_place=False)
    return handle.synchronize()[0]


def broadcast_(
    tensor,
    root_rank: int,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
):
    """Replace ``tensor`` on every rank by that of rank ``root_rank``; return it.

    Arguments and errors are those of :func:`broadcast`.
    """
    return handles.broadcast_async_(tensor, root_rank, name, process_set).synchronize()


def allgather(tensor, name: Optional[str] = None, process_set: ProcessSet = global_process_set):
    """Return the tensors of all ranks joined along the first dimension, which may differ by rank.

    :param tensor: of the same dtype, and of the same shape but for the first dimension; a 0-d one
        counts as one row.
    :return: a tensor of shape (rows of all ranks, ...), in the order of ranks.
    :raises ValueError: and HvdliteError: as :func:`allreduce`.
    """
    return _allgather(one_name("allgather", name, process_set), [tensor], process_set)[0]


def grouped_allgather(
    tensors: Sequence, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> List:
    """Do what :func:`allgather` does for each of the tensors."""
    return _allgather(full_names("allgather", name, tensors, process_set), tensors, process_set)


def alltoall(
    tensor,
    splits: Optional[Sequence[int]] = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
):
    """Send rows to every rank; return those that this rank gets, in the order of ranks.

    :param tensor: of at least one dimension; all but the first are the same on every rank.
    :param splits: how many rows go to each rank, the first ones to the first; what is left over is
        not sent. Without it all ranks get equally many.
    :return: the rows, or, if ``splits`` is given, a pair of them and of how many came from each
        rank, as int32.
    :raises ValueError: as :func:`allreduce`; the splits, or without them the ranks, do not suit the
        rows.
    """
    (full,) = one_name("alltoall", name, process_set)
    matrix = exchange.splits_of_all(full, tensor, splits, process_set)
    if differentiable.is_recorded([tensor]):
        out = differentiable.Alltoall.apply(full, matrix, process_set, tensor)
    else:
        (out,) = exchange.alltoall(full, tensor, matrix, process_set).synchronize()
    return out if splits is None else (out, exchange.received(matrix, process_set))


def reducescatter(
    tensor,
    name: Optional[str] = None,
    compression=NoneCompressor,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
):
    """Return this rank's rows of what :func:`allreduce` would return; any ``op`` but Adasum.

    Rows are dealt out in the order of ranks; where they can't be evenly, the first ranks get one
    more than the others. ``tensor`` stays as it is.

    :param tensor: of at least one dimension, of the same shape on every rank.
    :param op: and all else: as for :func:`allreduce`.
    :raises ValueError: as :func:`allreduce`; ``tensor`` is 0-d.
    """
    names = one_name("reducescatter", name, process_set)
    how = op_of(None, op), (prescale_factor, postscale_factor), process_set
    return _reducescatter(names, [tensor], compression, *how)[0]


def grouped_reducescatter(
    tensors: Sequence,
    name: Optional[str] = None,
    compression=NoneCompressor,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> List:
    """Do what :func:`reducescatter` does for each of the tensors."""
    names = full_names("reducescatter", name, tensors, process_set)
    how = op_of(None, op), (prescale_factor, postscale_factor), process_set
    return _reducescatter(names, tensors, compression, *how)


def join(device: int = -1, process_set: ProcessSet = global_process_set) -> int:
    """Say that this rank has no more data; return the last rank to say so, when all have.

    Until then zeros stand in for this rank in the other ranks' allreduces, as
    ``hvdlite.numpy.join`` has it.

    :param device: as in Horovod; tensors are on CPUs.
    """
    return collectives.join(process_set)


def _allreduce(names, tensors, compression, op, scales, process_set) -> List:
    sent = [compression.compress(tensor) for tensor in tensors]
    tensors = [tensor for tensor, _ in sent]
    if differentiable.is_recorded(tensors):
        outs = differentiable.Allreduce.apply(names, op, scales, process_set, *tensors)
    else:
        handle = exchange.allreduce(names, tensors, op, scales, process_set, in_place=False)
        outs = handle.synchronize()
    return [compression.decompress(out, ctx) for out, (_, ctx) in zip(outs, sent)]


def _allgather(names, tensors, process_set) -> List:
    if not names:
        return []
    rows = exchange.rows_of_all(names[0], names, tensors, process_set)
    if differentiable.is_recorded(tensors):
        return list(differentiable.Allgather.apply(names, rows, process_set, *tensors))
    return exchange.allgather(names, tensors, rows.sum(axis=0), process_set).synchronize()


def _reducescatter(names, tensors, compression, op, scales, process_set) -> List:
    sent = [compression.compress(tensor) for tensor in tensors]
    tensors = [tensor for tensor, _ in sent]
    if differentiable.is_recorded(tensors):
        outs = differentiable.Reducescatter.apply(names, op, scales, process_set, *tensors)
    else:
        outs = exchange.reducescatter(names, tensors, op, scales, process_set).synchronize()
    return [compression.decompress(out, ctx) for out, (_, ctx) in zip(outs, sent)]
