"""Averages the gradients of a Keras optimizer over ranks, for each of Keras's backends."""

import contextlib
import functools
from typing import Any, List, Sequence

import numpy as np
from keras import backend

from hvdlite.core.native import HvdliteError, keep_failure, lib
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
    import torch
    from ml_dtypes import bfloat16  # installed with Keras, which requires ml_dtypes

    from hvdlite.torch.tensors import check

    for i, tensor in zip(labels, tensors):
        if tensor.layout is not torch.strided or tensor.device.type != "cpu":
            check(f"gradient {i}", tensor)  # raises for an unsupported tensor

    def to_numpy(tensor):  # .numpy() raises for bfloat16, so pass bfloat16 as int16
        tensor, is_bfloat16 = tensor.detach(), tensor.dtype is torch.bfloat16
        return tensor.view(torch.int16).numpy().view(bfloat16) if is_bfloat16 else tensor.numpy()

    def to_torch(array):
        if array.dtype == bfloat16:
            return torch.from_numpy(array.view("int16")).view(torch.bfloat16)
        return torch.from_numpy(array)

    arrays = [to_numpy(each) for each in tensors]
    if reducer.step_check is not None:
        reducer.step_check.start(int(step), labels, names).synchronize()
    return [to_torch(array) for array in reducer.start(labels, arrays).synchronize()]


def _on_jax(reducer: GradientReducer, step, names, labels: Sequence[int], tensors) -> List:
    import jax
    from jax.experimental import io_callback

    from hvdlite.jax.calls import Collective, run

    def check(step):
        try:
            return reducer.step_check.start(int(step), labels, names).synchronize()[0]
        except HvdliteError as error:
            raise keep_failure(error) from None

    done = []
    if reducer.step_check is not None:
        done = [io_callback(check, jax.ShapeDtypeStruct((), np.int32), step, ordered=True)]
    op, scales = reducer.reduction.of_arrays()
    name = reducer.name(labels[0], others=len(labels) - 1)
    collective = Collective(lib.HVD_ALLREDUCE, name, reducer.reduction.process_set, op, scales)
    return run(collective, *tensors, after=done)


def after(grads: Sequence) -> Any:
    """Return a context whose operations wait for the averages, in a graph of TensorFlow.

    If ``average`` fails on all ranks, no rank may have changed its states.
    """
    if backend.backend() != "tensorflow":
        return contextlib.nullcontext()
    import tensorflow as tf

    found = [getattr(grad, "values", grad) for grad in grads if grad is not None]
    return tf.control_dependencies(found[:1])  # all averages depend on one check of the step


_ON = {"torch": _on_torch, "jax": _on_jax}
