"""Averages the gradients of a tape or of an optimizer over ranks."""

from functools import partial
from typing import List, Sequence

import numpy as np
import tensorflow as tf

from hvdlite.tensorflow.exchange import begin, gate, run, wait
from hvdlite.tensorflow.ops import allreduce
from hvdlite.training.plan import GradientReducer


def average(
    grads: Sequence, reducer: GradientReducer, step: tf.Tensor, names: Sequence[str] = ()
) -> List:
    """Return gradients reduced over ranks; None stays None, IndexedSlices stay IndexedSlices.

    In a graph, gradients are sent while backward computes other gradients, beginning with the
    gradients of the last variables. One node waits for all results.

    :param step: a tensor with the number of the step, which must be equal on all ranks.
    :param names: the variables' names, or ().
    :return: on a rank outside the process set the unchanged gradients, as in Horovod.
    """
    reduction = reducer.reduction
    if reduction.is_alone():
        return list(grads)
    if reduction.sparse_as_dense:
        grads = [
            tf.convert_to_tensor(grad) if isinstance(grad, tf.IndexedSlices) else grad
            for grad in grads
        ]
    # A graph does this check while it computes the loss, so gradients do not wait for the check.
    with tf.control_dependencies(_check_step(grads, reducer, step, names)):
        dense = [i for i, grad in enumerate(grads) if isinstance(grad, tf.Tensor)]
        reduce = lambda labels, sent: _average_dense(sent, labels, reducer)  # noqa: E731
        results = reducer.reduce_at(grads, dense, reduce)
        for i, grad in enumerate(grads):
            if isinstance(grad, tf.IndexedSlices):
                name, process_set = f"{reducer.owner}.{i}", reduction.process_set
                results[i] = allreduce(grad, op=reduction.op, name=name, process_set=process_set)
    return results


def _check_step(grads, reducer: GradientReducer, step, names: Sequence[str]) -> List[tf.Tensor]:
    check = reducer.step_check
    if check is None:
        return []
    present = [i for i, grad in enumerate(grads) if grad is not None]
    sparse = [i for i in present if isinstance(grads[i], tf.IndexedSlices)]

    def start(arrays):
        return check.start(int(arrays[0]), present, names, sparse)

    return gate(start, [step])


def _average_dense(
    tensors: List[tf.Tensor], labels: Sequence[int], reducer: GradientReducer
) -> List:
    dtypes, shapes = [t.dtype for t in tensors], [t.shape for t in tensors]
    if tf.executing_eagerly():
        return run(partial(reducer.start, labels), tensors, dtypes, shapes)
    order = range(len(tensors))
    groups = reducer.reduction.groups(order, lambda i: _bytes_of(tensors[i]))
    begun = []
    for group in groups[::-1]:  # backward computes the gradients of the last variables first
        sent = [tensors[i] for i in group]
        begun.append(begin(partial(reducer.start, [labels[i] for i in group]), sent))
    return wait(begun[::-1], dtypes, shapes)


def _bytes_of(tensor: tf.Tensor) -> int:
    elements = tensor.shape.num_elements() if tensor.shape.is_fully_defined() else 0
    return int(np.dtype(tensor.dtype.as_numpy_dtype).itemsize * elements)


def divide(grad, size: int):
    """Divide the gradient of a local variable by ``size``, to get the scale of averages."""
    if grad is None:
        return None
    if isinstance(grad, tf.IndexedSlices):
        return tf.IndexedSlices(grad.values / size, grad.indices, grad.dense_shape)
    return grad / size
