"""Averages the gradients of a Keras optimizer over ranks, for each of Keras's backends."""

import contextlib
import functools
from typing import Any, List, Sequence

import numpy as np
from keras import backend

from hvdlite.core.native import failures_kept, lib
from hvdlite.training.plan import GradientReducer


def average(grads: Sequence, reducer: GradientReducer, step, names: Sequence[str]) -> List:
    """Return the gradients reduced over ranks; a gradient that is None stays None.

    :param step: a tensor with the number of the step, which must be equal on all ranks.
    :param names: the variables' names.
    """
    if backend.backend() == "tensorflow":
        # Import TensorFlow here only: scripts on other backends may not have it.
        from hvdlite.tensorflow import gradients

        return gradients.average(grads, reducer, step, names)
    if reducer.reduction.is_alone():
        return list(grads)
    present = [i for i, grad in enumerate(grads) if grad is not None]
    on = _ON[backend.backend()]
    return reducer.reduce_at(grads, present, functools.partial(on, reducer, step, names))


def _on_torch(reducer: GradientReducer, step, names, labels: Sequence[int], tensors) -> List:
    from hvdlite.torch import exchange
    from hvdlite.torch import tensors as of_torch

    for i, tensor in zip(labels, tensors):
        of_torch.check(f"gradient {i}", tensor)
    if reducer.step_check is not None:
        reducer.step_check.start(int(step), labels, names).synchronize()
    full, (op, scales) = [reducer.name(i) for i in labels], reducer.reduction.of_arrays()
    process_set = reducer.reduction.process_set
    return exchange.allreduce(full, tensors, op, scales, process_set).synchronize()


def _on_jax(reducer: GradientReducer, step, names, labels: Sequence[int], tensors) -> List:
    import jax
    from jax.experimental import io_callback

    from hvdlite.jax.calls import Collective, run

    def check(step):
        with failures_kept():
            return reducer.step_check.start(int(step), labels, names).synchronize()[0]

    done = []
    if reducer.step_check is not None:
        done = [io_callback(check, jax.ShapeDtypeStruct((), np.int32), step, ordered=True)]
    op, scales = reducer.reduction.of_arrays()
    name = reducer.name(labels[0], others=len(labels) - 1)
    collective = Collective(lib.HVD_ALLREDUCE, name, reducer.reduction.process_set, op, scales)
    return run(collective, *tensors, after=done)


def after(grads: Sequence) -> Any:
    """Return a context whose operations wait for the averages, in a graph of TensorFlow.

    So if the averages fail on all ranks, no rank has changed its states.
    """
    if backend.backend() != "tensorflow":
        return contextlib.nullcontext()
    import tensorflow as tf

    found = [getattr(grad, "values", grad) for grad in grads if grad is not None]
    return tf.control_dependencies(found[:1])  # one is enough: all wait for the same check


_ON = {"torch": _on_torch, "jax": _on_jax}
