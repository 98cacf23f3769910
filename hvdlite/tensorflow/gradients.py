"""Averages the gradients of a tape or of an optimizer over ranks."""

from functools import partial
from typing import List, Sequence

import numpy as np
import tensorflow as tf

from hvdlite.tensorflow.exchange import begin, run, wait
from hvdlite.tensorflow.ops import allreduce
from hvdlite.training.plan import GradientReducer


def average(grads: Sequence, reducer: GradientReducer, step=None) -> List:
    """Return gradients reduced over ranks; None stays None, IndexedSlices stay IndexedSlices.

    In a graph, gradients are sent while backward computes others, beginning with the gradients of
    the last variables. One node waits for all results.

    :param step: a tensor with the number of the step, which must be equal on all ranks.
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
    dense = [i for i, grad in enumerate(grads) if isinstance(grad, tf.Tensor)]
    present = [i for i, grad in enumerate(grads) if grad is not None]
    results = reducer.reduced(
        grads, dense, lambda labels, sent: _average_dense(sent, labels, reducer, step, present)
    )
    for i, grad in enumerate(grads):
        if isinstance(grad, tf.IndexedSlices):
            name, process_set = f"{reducer.owner}.{i}", reduction.process_set
            results[i] = allreduce(grad, op=reduction.op, name=name, process_set=process_set)
    return results


def _average_dense(
    tensors: List[tf.Tensor], labels: Sequence[int], reducer: GradientReducer, step,
    present: Sequence[int],
) -> List:  # fmt: skip
    def start(labels, with_step, arrays):
        told = [arrays[:-1], arrays[-1], present] if with_step else [arrays]
        return reducer.start(labels, *told)

    dtypes, shapes, steps = [t.dtype for t in tensors], [t.shape for t in tensors], []
    if reducer.step_check is not None and step is not None:
        steps = [step]
    if tf.executing_eagerly():
        return run(partial(start, labels, bool(steps)), [*tensors, *steps], dtypes, shapes)
    order = range(len(tensors))
    groups = reducer.reduction.groups(order, lambda i: _bytes_of(tensors[i]))
    begun = []
    for group in groups[::-1]:  # backward computes the gradients of the last variables first
        # Send the step with the first group, because wait() reads that group's result first.
        told = steps if group is groups[0] else []
        sent = [*(tensors[i] for i in group), *told]
        begun.append(begin(partial(start, [labels[i] for i in group], bool(told)), sent))
    return wait(begun[::-1], dtypes, shapes)


def _bytes_of(tensor: tf.Tensor) -> int:
    elements = tensor.shape.num_elements() if tensor.shape.is_fully_defined() else 0
    return int(np.dtype(tensor.dtype.as_numpy_dtype).itemsize * elements)


def divided(grad, size: int):
    """Divide the gradient of a local variable by ``size``, to get the scale of averages."""
    if grad is None:
        return None
    if isinstance(grad, tf.IndexedSlices):
        return tf.IndexedSlices(grad.values / size, grad.indices, grad.dense_shape)
    return grad / size
