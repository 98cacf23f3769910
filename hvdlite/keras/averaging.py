"""Averages the gradients of a Keras optimizer over ranks, on each of Keras's backends."""

from typing import List, Sequence

import numpy as np
from keras import backend

from hvdlite.core.native import lib
from hvdlite.training.plan import Plan


def average(grads: Sequence, plan: Plan, step) -> List:
    """Return the gradients reduced over ranks; None stays None.

    :param step: a tensor: the number of the step, which must be equal on all ranks.
    """
    if backend.backend() == "tensorflow":
        # imported here, because other backends do not need TensorFlow
        from hvdlite.tensorflow import gradients

        return gradients.average(grads, plan, step)
    if plan.reduction.is_alone():
        return list(grads)  # unchanged, as with TensorFlow
    present = [i for i, grad in enumerate(grads) if grad is not None]
    on = _ON[backend.backend()]
    return plan.reduced(grads, present, lambda labels, tensors: on(plan, labels, tensors, step))


def _on_torch(plan: Plan, labels: Sequence[int], tensors: Sequence, step) -> List:
    import torch
    from ml_dtypes import bfloat16  # ml_dtypes is there, because Keras needs it

    from hvdlite.torch.tensors import check

    for i, tensor in zip(labels, tensors):
        if tensor.layout is not torch.strided or tensor.device.type != "cpu":
            check(f"gradient {i}", tensor)  # raises for an unsupported tensor

    def to_numpy(tensor):  # not by .numpy(), because PyTorch and NumPy do not exchange bfloat16
        tensor, is_bfloat16 = tensor.detach(), tensor.dtype is torch.bfloat16
        return tensor.view(torch.int16).numpy().view(bfloat16) if is_bfloat16 else tensor.numpy()

    def to_torch(array):
        if array.dtype == bfloat16:
            return torch.from_numpy(array.view("int16")).view(torch.bfloat16)
        return torch.from_numpy(array)

    arrays = [to_numpy(each) for each in tensors]
    return [to_torch(array) for array in plan.reduce(labels, arrays, step)]


def _on_jax(plan: Plan, labels: Sequence[int], tensors: Sequence, step) -> List:
    import jax
    from jax.experimental import io_callback

    from hvdlite.jax.calls import Collective, run

    def check(step):
        plan.step_check.start(int(step))()
        return np.int32(0)

    done = []  # the step is checked first: if ranks disagree on it, their allreduces may never end
    if plan.step_check is not None:
        done = [io_callback(check, jax.ShapeDtypeStruct((), np.int32), step, ordered=True)]
    op, scales = plan.reduction.of_arrays()
    name, process_set = plan.name(labels[0], others=len(labels) - 1), plan.reduction.process_set
    collective = Collective(lib.HVD_ALLREDUCE, name, process_set, op, scales)
    return run(collective, *tensors, after=done)


_ON = {"torch": _on_torch, "jax": _on_jax}
