"""Makes a digest of loaded optimizer states, which ranks compare in their next step."""

from typing import Any, Dict, Iterator

import torch

from hvdlite.training.announce import digest_of_bytes
from hvdlite.training.left_out import KEY

_SAMPLE = 1024  # number of values of a tensor that enter the digest


def digest_of(state: Dict[str, Any], sample: int = _SAMPLE) -> int:
    """Return a number above 0: equal states have equal numbers, other states most likely not.

    :param sample: how many values of each tensor are used. With 0 only tensors of 1 value are used,
        such as step counts: other values may differ if the CPUs of two hosts round differently.
    """
    plain = {key: value for key, value in state.items() if key != KEY}
    return digest_of_bytes(_pieces(plain, sample))


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
    # the repr of other types may contain addresses
    elif value is None or isinstance(value, (bool, int, float, str)):
        yield repr(value).encode()
