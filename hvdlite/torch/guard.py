"""A guard of a PyTorch model's parameters."""

from typing import Iterator

import torch

from hvdlite.core.process_set import ProcessSet, global_process_set
from hvdlite.training import guards


class Guard(guards.Guard):
    """Checks every few steps that ranks have equal parameters, without NaN and infinity.

    Call ``step()`` between backward and the optimizer's step. A ``DistributedOptimizer`` averages
    while backward runs, so a NaN may already have spread to all ranks.

    :param named_parameters: ``model.named_parameters()``, in the same order on every rank.
    :param every: steps between two checks; the first check is before the first step.
    :param process_set: the ranks that train together; other ranks check nothing.
    :raises ValueError: ``every`` is less than 1.
    """

    def __init__(
        self, named_parameters, every: int = 100, process_set: ProcessSet = global_process_set
    ) -> None:
        self._params = list(named_parameters)
        super().__init__(every, process_set)

    def _guarded(self) -> Iterator[guards.Guarded]:
        for name, param in self._params:
            gradient = None if param.grad is None else _as_numpy(param.grad)
            yield guards.Guarded(name, _as_numpy(param), gradient)


def _as_numpy(tensor: torch.Tensor):
    tensor = tensor.detach()
    if tensor.is_sparse:
        tensor = tensor._values()  # all other values are zeros
    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()
