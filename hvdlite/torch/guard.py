"""Guard for the parameters of a PyTorch model."""

from typing import Iterator

import torch

from hvdlite.training import guards


class Guard(guards.Guard):
    """Checks every few steps that ranks have equal parameters, and no NaN or infinity.

    Call ``step()`` between backward and the optimizer's step. A ``DistributedOptimizer`` averages
    while backward runs, so one rank's NaN may have reached all ranks before the check.

    :param params: ``model.named_parameters()``, in the same order on every rank.
    :param every: steps between two checks; the first check is before the first step.
    :param process_set: the ranks that train together; other ranks check nothing.
    :raises ValueError: ``every`` is less than 1.
    """

    def _guarded(self) -> Iterator[guards.Guarded]:
        for name, param in self._params:
            gradient = None if param.grad is None else _as_numpy(param.grad)
            yield guards.Guarded(name, _as_numpy(param), gradient)


def _as_numpy(tensor: torch.Tensor):
    tensor = tensor.detach()
    if tensor.is_sparse:
        tensor = tensor._values()  # the other values are zeros
    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()
