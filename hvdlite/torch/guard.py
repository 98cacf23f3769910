"""What ranks compare: a model's parameters every few steps, and the optimizer states they load."""

import zlib
from typing import Any, Dict, Iterator

import torch

from hvdlite.core.process_set import ProcessSet, global_process_set
from hvdlite.training import guards
from hvdlite.training.left_out import KEY

_SAMPLE = 1024  # number of values of a tensor that enter the digest


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
        tensor = tensor._values()  # the other values are zeros
    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()


def digest_of(state: Dict[str, Any], sample: int = _SAMPLE) -> int:
    """Return a number above 0 that tells most loaded states from others, alike on every rank.

    :param sample: number of values of each tensor that enter. With 0 only tensors of 1 value enter,
        such as step counts: on hosts whose CPUs round differently only these are equal.
    """
    plain = {key: value for key, value in state.items() if key != KEY}
    digest = 0
    for piece in _pieces(plain, sample):
        digest = zlib.crc32(piece, digest)
    return digest % (2**31 - 1) + 1


def _pieces(value: Any, sample: int) -> Iterator[bytes]:
    if isinstance(value, torch.Tensor):
        count = sample if value.numel() > 1 else 1
        few = value.detach().flatten()[:count].cpu().contiguous()
        yield few.view(torch.uint8).numpy().tobytes()
    elif isinstance(value, dict):
        for key, each in value.items():
            yield repr(key).encode()
            yield from _pieces(each, sample)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _pieces(each, sample)
    # texts of other types may contain addresses
    elif value is None or isinstance(value, (bool, int, float, str)):
        yield repr(value).encode()
