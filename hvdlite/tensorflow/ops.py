"""Collectives on TensorFlow's tensors, in eager mode, in ``tf.function`` and in sessions' graphs.

Each call waits for the result and has a gradient with Horovod's scale: docs/training.md, "Gradients
through collectives". ``device_dense`` and ``device_sparse`` are ignored: tensors are on the CPU.
Ranks match their tensors by ``name``, by default the calling line of the script. Dtypes: those of
``hvdlite.numpy``.
"""

from typing import List, Optional, Sequence

import numpy as np
import tensorflow as tf

from hvdlite import numpy as collectives
from hvdlite.core import topology
from hvdlite.core.arguments import check_compressor, op_of, refuse_mask, scales_of
from hvdlite.core.names import group_names
from hvdlite.core.process_set import ProcessSet, global_process_set
from hvdlite.core.reduce_ops import Average, Sum
from hvdlite.tensorflow import differentiable
from hvdlite.tensorflow.exchange import name_of, run
from hvdlite.training.codecs import Cast, NoneCompressor, compress


class FP16Compressor(Cast):
    """Send float32 and float64 tensors as float16; add in float32 and round the sum once."""

    dtype, wide = tf.float16, (tf.float32, tf.float64)
    cast = staticmethod(tf.cast)


class Compression:
    """The values for the argument ``compression``."""

    none = NoneCompressor
    fp16 = FP16Compressor


def _tensor(value) -> tf.Tensor:
    refuse_mask(value)
    return tf.convert_to_tensor(value)


def allreduce(
    tensor, average=None, device_dense="", device_sparse="", compression=NoneCompressor, op=None,
    prescale_factor=1.0, postscale_factor=1.0, name: Optional[str] = None,
    process_set: ProcessSet = global_process_set, ignore_name_scope=False,
):  # fmt: skip
    """Return ``op`` over all ranks of ``tensor * prescale_factor``, times ``postscale_factor``.

    :param tensor: a tensor or variable of the same shape and dtype on every rank, or
        ``tf.IndexedSlices``, whose result has the rows of all ranks (Sum and Average only).
    :param average: True for Average, False for Sum; ``op`` has more choices.
    :param compression: Compression.none or fp16, or a class with the same methods.
    :param op: Average (the default), Sum, Min, Max, Product or Adasum.
    :param prescale_factor: the factor before the reduction; ``postscale_factor``: the factor after
        it. Both are finite and the same on every rank. Integers are truncated before the sum; int64
        can wrap before Average divides.
    :raises ValueError: a wrong argument.
    :raises NotImplementedError: ``tf.IndexedSlices`` with another op, or with a factor.
    :raises hvdlite.HvdliteError: ranks disagree, a rank has left, or the transport failed. In a
        graph TensorFlow raises its own error with the same text.
    """
    return grouped_allreduce(
        [tensor], average, device_dense, device_sparse, compression, op, prescale_factor,
        postscale_factor, process_set, ignore_name_scope, name,
    )[0]  # fmt: skip


def grouped_allreduce(
    tensors: Sequence, average=None, device_dense="", device_sparse="",
    compression=NoneCompressor, op=None, prescale_factor=1.0, postscale_factor=1.0,
    process_set: ProcessSet = global_process_set, ignore_name_scope=False,
    name: Optional[str] = None,
) -> List:  # fmt: skip
    """Do what :func:`allreduce` does for several tensors."""
    op, name = op_of(average, op), name_of("allreduce", name, process_set)
    scales = scales_of(prescale_factor, postscale_factor)
    check_compressor(compression)
    names = group_names(name, tensors)
    names = [name] if len(names) == 1 else names
    results = [None] * len(tensors)
    dense = [i for i, each in enumerate(tensors) if not isinstance(each, tf.IndexedSlices)]
    if len(dense) < len(tensors):
        _check_slices(name, op, scales)
    if dense:
        sent, restored = compress([_tensor(tensors[i]) for i in dense], compression)
        dense_names = [names[i] for i in dense]
        arrived = differentiable.allreduce(dense_names, sent, op, scales, process_set)
        for i, reduced in zip(dense, restored(arrived)):
            results[i] = reduced
    for i, slices in enumerate(tensors):
        if results[i] is None:
            results[i] = _allreduce_slices(names[i], slices, op, process_set)
    return results


def _check_slices(name: str, op: int, scales) -> None:
    if op not in (Sum, Average) or scales != (1.0, 1.0):
        raise NotImplementedError(
            f"tensor '{name}' is IndexedSlices: expected op Sum or Average, without "
            "prescale_factor and postscale_factor: for other ops and factors, send dense tensors "
            "(sparse_as_dense=True)"
        )


def _allreduce_slices(name, slices: tf.IndexedSlices, op, process_set) -> tf.IndexedSlices:
    names = [f"{name}.values", f"{name}.indices"]
    values, indices = differentiable.allgather(
        name, names, [slices.values, slices.indices], process_set
    )
    if op == Average:
        values = values / tf.cast(process_set.size(), values.dtype)
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def allgather(
    tensor, name: Optional[str] = None, ignore_name_scope=False,
    process_set: ProcessSet = global_process_set,
):  # fmt: skip
    """Return the tensors of all ranks, joined along the first dimension in the order of ranks.

    :param tensor: of the same dtype on every rank, and of the same shape except for the first
        dimension; a 0-d tensor counts as one row.
    :raises ValueError: as :func:`allreduce`.
    :raises HvdliteError: as :func:`allreduce`.
    """
    return grouped_allgather([tensor], name, ignore_name_scope, process_set)[0]


def grouped_allgather(
    tensors: Sequence, name: Optional[str] = None, ignore_name_scope=False,
    process_set: ProcessSet = global_process_set,
) -> List:  # fmt: skip
    """Do what :func:`allgather` does for several tensors."""
    name = name_of("allgather", name, process_set)
    names = group_names(name, tensors)
    names = [name] if len(names) == 1 else names
    return differentiable.allgather(name, names, list(map(_tensor, tensors)), process_set)


def broadcast(
    tensor, root_rank: int, name: Optional[str] = None, ignore_name_scope=False,
    process_set: ProcessSet = global_process_set,
):  # fmt: skip
    """Return rank ``root_rank``'s tensor; ranks must pass the same shape and dtype.

    :raises ValueError: ``root_rank`` is not in the set; otherwise as :func:`allreduce`.
    """
    name = name_of("broadcast", name, process_set)
    process_set.number_of(root_rank)  # raises now, not when the graph runs
    return differentiable.broadcast(name, _tensor(tensor), root_rank, process_set)


def alltoall(
    tensor, splits=None, name: Optional[str] = None, ignore_name_scope=False,
    process_set: ProcessSet = global_process_set,
):  # fmt: skip
    """Send rows to every rank; return the rows that this rank receives, in rank order.

    :param splits: the number of rows for each rank; by default the same number for every rank.
    :return: the received rows; with ``splits`` a pair: the rows, and the number from each rank.
    :raises ValueError: as :func:`allreduce`.
    :raises HvdliteError: as :func:`allreduce`.
    """
    tensor, name = _tensor(tensor), name_of("alltoall", name, process_set)
    is_even = splits is None
    if is_even:
        each = tf.shape(tensor)[0] // process_set.size()
        splits = tf.fill([process_set.size()], each)
    splits = _tensor(splits)
    rows, received = differentiable.alltoall(name, tensor, splits, is_even, process_set)
    return rows if is_even else (rows, tf.cast(received, splits.dtype))


def reducescatter(
    tensor, device_dense="", compression=NoneCompressor, op=Average, name: Optional[str] = None,
    process_set: ProcessSet = global_process_set, ignore_name_scope=False, prescale_factor=1.0,
    postscale_factor=1.0,
):  # fmt: skip
    """Return this rank's rows of the tensor that :func:`allreduce` would return.

    :param tensor: of at least one dimension. Arguments and errors are as for :func:`allreduce`, but
        ``op`` can't be Adasum.
    """
    name = name_of("reducescatter", name, process_set)
    scales = scales_of(prescale_factor, postscale_factor)
    return _reducescatter([name], [tensor], compression, op, scales, process_set)[0]


def grouped_reducescatter(
    tensors: Sequence, device_dense="", compression=NoneCompressor, op=Average,
    process_set: ProcessSet = global_process_set, prescale_factor=1.0, postscale_factor=1.0,
    name: Optional[str] = None,
) -> List:  # fmt: skip
    """Do what :func:`reducescatter` does for several tensors."""
    names = group_names(name_of("reducescatter", name, process_set), tensors)
    scales = scales_of(prescale_factor, postscale_factor)
    return _reducescatter(names, tensors, compression, op, scales, process_set)


def _reducescatter(names, tensors, compression, op, scales, process_set) -> List:
    op = op_of(None, op)
    check_compressor(compression)
    sent, restored = compress(list(map(_tensor, tensors)), compression)
    for name, tensor in zip(names, sent):
        if tensor.shape.rank == 0:
            raise ValueError(
                f"tensor '{name}' is 0-d: expected at least one dimension, because a reducescatter "
                "splits the first dimension among the ranks"
            )
    return restored(differentiable.reducescatter(names, sent, op, scales, process_set))


def join(process_set: ProcessSet = global_process_set):
    """Tell the other ranks that this rank has no more data; wait; return the last rank to join."""
    if topology.size() == 1:
        return tf.constant(0)

    def joined(_arrays):
        return collectives.Handle(lambda: True, lambda: [np.int32(collectives.join(process_set))])

    return run(joined, [], [tf.int32], [[]])[0]
