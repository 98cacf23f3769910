"""Collectives with gradients. Callers pass the names by which ranks match their tensors.

Gradients have the same values and scale as Horovod's: docs/training.md, "Gradients through
collectives". The collective in backward has the forward collective's name plus ".grad".
"""

from typing import List, Sequence

import tensorflow as tf

from hvdlite import numpy as collectives
from hvdlite.core import grouped, topology
from hvdlite.core.collectives import dense
from hvdlite.core.handles import Handle
from hvdlite.core.names import tensor_name
from hvdlite.core.native import lib
from hvdlite.core.process_set import ProcessSet
from hvdlite.core.reduce_ops import Average, check_linear, scatter_gradient_scale
from hvdlite.core.splits import part_shape
from hvdlite.tensorflow.exchange import run


def allreduce(names: Sequence[str], tensors, op, scales, process_set: ProcessSet) -> List:
    """Reduce the tensors; backward reduces the gradients with the same operation."""

    @tf.custom_gradient
    def reduce_(*tensors):
        def gradient(*grads):
            check_linear(names[0], op)
            of_grads = [f"{name}.grad" for name in names]
            return allreduce(of_grads, list(grads), op, scales, process_set)

        results = run(
            lambda arrays: start_allreduce(names, arrays, op, scales, process_set),
            tensors, [t.dtype for t in tensors], [t.shape for t in tensors],
        )  # fmt: skip
        return results, gradient

    return list(reduce_(*tensors))


def start_allreduce(names, arrays, op, scales, process_set: ProcessSet) -> Handle:
    """Start the allreduces of the arrays; return one handle for all of them."""
    full = _full_names("allreduce", names, process_set)
    return grouped.reductions(lib.HVD_ALLREDUCE, full, arrays, op, scales, process_set)


def allgather(name: str, names: Sequence[str], tensors, process_set: ProcessSet) -> List:
    """Gather rows; backward averages the gradient over ranks and returns this rank's rows."""

    @tf.custom_gradient
    def gather(*tensors):
        def gradient(*grads):
            return [
                _own_rows(f"{own}.grad", grad, tensor, process_set)
                for own, grad, tensor in zip(names, grads, tensors)
            ]

        shapes = [tf.TensorShape([None]).concatenate(tensor.shape[1:]) for tensor in tensors]
        results = run(
            lambda arrays: collectives.grouped_allgather_async(arrays, name, process_set),
            tensors, [t.dtype for t in tensors], shapes,
        )  # fmt: skip
        return results, gradient

    return list(gather(*tensors))


def _own_rows(name: str, grad, tensor, process_set: ProcessSet):
    reduced = allreduce([name], [grad], Average, (1.0, 1.0), process_set)[0]
    own = tf.reshape(tf.shape(tensor)[0] if tensor.shape.rank else 1, [1])
    rows = allgather(f"{name}.rows", [f"{name}.rows"], [own], process_set)[0]
    start = tf.reduce_sum(rows[: process_set.rank()])
    return tf.reshape(reduced[start : start + own[0]], tf.shape(tensor))


def broadcast(name: str, tensor, root_rank: int, process_set: ProcessSet):
    """Broadcast; the root's gradient is the average over ranks, other ranks' gradients are zero."""

    @tf.custom_gradient
    def broadcast_(tensor):
        def gradient(grad):
            reduced = allreduce([f"{name}.grad"], [grad], Average, (1.0, 1.0), process_set)[0]
            if topology.rank() == root_rank:
                return reduced
            # Without the dependency a session skips the allreduce, because nothing uses its result.
            with tf.control_dependencies([reduced]):
                return tf.zeros_like(grad)

        results = run(
            lambda arrays: start_broadcast([name], arrays, root_rank, process_set),
            [tensor], [tensor.dtype], [tensor.shape],
        )  # fmt: skip
        return results[0], gradient

    return broadcast_(tensor)


def start_broadcast(names, arrays, root_rank: int, process_set: ProcessSet) -> Handle:
    """Start the broadcasts of the arrays; return one handle for all of them."""
    full = _full_names("broadcast", names, process_set)
    return grouped.broadcasts(full, arrays, root_rank, process_set)


def alltoall(name: str, tensor, splits, is_even: bool, process_set: ProcessSet):
    """Exchange rows; return the received rows and the number of rows from each rank.

    Backward exchanges the gradients in the opposite direction; unsent rows get zeros."""

    @tf.custom_gradient
    def exchange(tensor):
        shape = tf.TensorShape([None]).concatenate(tensor.shape[1:])
        arrived, received = run(
            start, [tensor, splits], [tensor.dtype, tf.int64], [shape, [process_set.size()]]
        )

        def gradient(grad, _):
            back, _ = alltoall(f"{name}.grad", grad, received, False, process_set)
            left = tf.shape(tensor)[0] - tf.shape(back)[0]  # number of rows that were not sent
            rest = tf.zeros(tf.concat([[left], tf.shape(tensor)[1:]], 0), back.dtype)
            return tf.reshape(tf.concat([back, rest], 0), tf.shape(tensor))

        return (arrived, received), gradient

    def start(arrays):
        array, splits = arrays
        full = tensor_name("alltoall", name, process_set)
        splits = None if is_even else splits
        return grouped.exchange(full, dense(array), splits, process_set).then(list)

    return exchange(tensor)


def reducescatter(names: Sequence[str], tensors, op, scales, process_set: ProcessSet) -> List:
    """Reduce and scatter; backward gathers the gradients and scales them."""
    scale = scatter_gradient_scale(op, scales, process_set.size())

    @tf.custom_gradient
    def scatter(*tensors):
        def gradient(*grads):
            check_linear(names[0], op)
            return [
                allgather(f"{own}.grad", [f"{own}.grad"], [grad], process_set)[0]
                * tf.cast(scale, grad.dtype)
                for own, grad in zip(names, grads)
            ]

        full = _full_names("reducescatter", names, process_set)
        kind = lib.HVD_REDUCESCATTER
        results = run(
            lambda arrays: grouped.reductions(kind, full, arrays, op, scales, process_set),
            tensors, [t.dtype for t in tensors],
            [_part_shape(tensor.shape, process_set) for tensor in tensors],
        )  # fmt: skip
        return results, gradient

    return list(scatter(*tensors))


def _part_shape(shape: tf.TensorShape, process_set: ProcessSet) -> tf.TensorShape:
    if shape.rank is None or (shape.rank and shape[0] is None):
        return shape
    return tf.TensorShape(part_shape(shape[:1], process_set)).concatenate(shape[1:])


def _full_names(kind: str, names: Sequence[str], process_set: ProcessSet) -> List[str]:
    return [tensor_name(kind, name, process_set) for name in names]
