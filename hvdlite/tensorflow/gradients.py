"""Gradients that belong together, averaged over ranks: those of a tape or of an optimizer."""

from typing import Callable, List, Sequence

import numpy as np
import tensorflow as tf

from hvdlite.tensorflow.differentiable import start_allreduce
from hvdlite.tensorflow.exchange import begin, run, wait
from hvdlite.tensorflow.ops import allreduce
from hvdlite.training.plan import Reduction, split, split_by_bytes


def average(grads: Sequence, name: str, reduction: Reduction) -> List:
    """Return gradients reduced over ranks; None stays None, IndexedSlices stay so.

    In a graph those that backward has first, of the last variables, are on their way before it has
    the others. What waits for all of them is one node.

    :param name: pairs the gradients with those of the other ranks, one by one in this order.
    :return: on a rank outside of the process set the gradients as they are, as in Horovod.
    """
    if not reduction.process_set.included():
        return list(grads)
    grads = [_dense(grad) if reduction.sparse_as_dense else grad for grad in grads]
    results = list(grads)
    dense = [i for i, grad in enumerate(grads) if isinstance(grad, tf.Tensor)]
    if dense:
        sent = [reduction.compression.compress(grads[i]) for i in dense]
        reduced = _average_dense(
            [each for each, _ in sent], [f"{name}.{i}" for i in dense], reduction
        )
        for i, each, (_, context) in zip(dense, reduced, sent):
            results[i] = reduction.compression.decompress(each, context)
    for i, grad in enumerate(grads):
        if isinstance(grad, tf.IndexedSlices):
            results[i] = allreduce(
                grad, op=reduction.op, name=f"{name}.{i}", process_set=reduction.process_set
            )
    return results


def _dense(grad):
    return tf.convert_to_tensor(grad) if isinstance(grad, tf.IndexedSlices) else grad


def _average_dense(tensors: List[tf.Tensor], names: List[str], reduction: Reduction) -> List:
    def starter(names) -> Callable:
        factor = reduction.predivide_factor
        scales = 1 / factor, factor
        return lambda arrays: start_allreduce(
            names, arrays, reduction.op, scales, reduction.process_set
        )

    dtypes, shapes = [t.dtype for t in tensors], [t.shape for t in tensors]
    if tf.executing_eagerly():
        return run(starter(names), tensors, dtypes, shapes)
    order = list(range(len(tensors)))
    if reduction.num_groups:
        groups = split(order, reduction.num_groups)
    else:
        groups = split_by_bytes(order, [_bytes_of(tensor) for tensor in tensors])
    begun = [
        begin(starter([names[i] for i in group]), [tensors[i] for i in group])
        for group in groups[::-1]  # the order in which backward has them
    ]
    return wait(begun[::-1], dtypes, shapes)


def _bytes_of(tensor: tf.Tensor) -> int:
    elements = tensor.shape.num_elements() if tensor.shape.is_fully_defined() else 0
    return int(np.dtype(tensor.dtype.as_numpy_dtype).itemsize * elements)


def divided(grad, size: int):
    """Return the gradient of a variable that only this rank has, in the scale of an average."""
    if grad is None:
        return None
    if isinstance(grad, tf.IndexedSlices):
        return tf.IndexedSlices(grad.values / size, grad.indices, grad.dense_shape)
    return grad / size
