"""Compression of gradients: what is sent is smaller than what is kept.

Codecs run in the C core, as a part of the allreduce (``csrc/codec.h`` has rules and sources): they
take float32 and give float32. Any class with two static methods ``compress`` and ``decompress``, as
Horovod has them, will do as well. See docs/compression.md for what each costs and saves.
"""

from dataclasses import dataclass
from typing import Any, Dict, Tuple

import numpy as np

from hvdlite._native import lib


@dataclass(frozen=True)
class Codec:
    """A codec of the C core: one of ``lib.HVD_CODEC_*`` and its threshold or ratio."""

    kind: int
    parameter: float = 0.0

    @property
    def has_residual(self) -> bool:
        """Whether it carries over what a message leaves out."""
        return self.kind not in (lib.HVD_CODEC_FLOAT16, lib.HVD_CODEC_BFLOAT16)


class NoneCompressor:
    """Send gradients as they are."""

    @staticmethod
    def compress(tensor) -> Tuple[Any, Any]:
        """Return what to send, and what ``decompress`` needs to undo it."""
        return tensor, None

    @staticmethod
    def decompress(tensor, ctx):
        """Return the tensor that came back in the form that was compressed."""
        return tensor


class FP16Compressor:
    """Send float32 and float64 gradients as float16; sums are made in float32 and rounded once."""

    codec = Codec(lib.HVD_CODEC_FLOAT16)

    @staticmethod
    def compress(tensor) -> Tuple[Any, Any]:
        """Return the tensor in float16 and its own dtype; other dtypes stay as they are."""
        if tensor.dtype not in (np.float32, np.float64):
            return tensor, None
        return tensor.astype("float16"), tensor.dtype

    @staticmethod
    def decompress(tensor, ctx):
        """Return the tensor in the dtype it had."""
        return tensor if ctx is None else tensor.astype(ctx)


class BF16Compressor(NoneCompressor):
    """Send float32 gradients as bfloat16, whose range is float32's; other dtypes as they are.

    In C alone: MXNet 1.9.1 cuts off where it should round, and makes an infinity of some NaN.
    """

    codec = Codec(lib.HVD_CODEC_BFLOAT16)


def two_bit(threshold: float = 0.5) -> Codec:
    """Send +threshold, -threshold or 0 for each float32 value, 16 in 4 bytes: MXNet's 2bit.

    What is left out is added to the next gradient. Gradients are compressed before they are divided
    by the batch size, so the threshold belongs to their sum over the batch of one rank.

    :raises ValueError: a threshold that is not above 0.
    """
    if not threshold > 0:
        raise ValueError(f"two_bit(threshold={threshold}): expected a threshold above 0")
    return Codec(lib.HVD_CODEC_2BIT, float(threshold))


def one_bit(threshold: float = 0.0) -> Codec:
    """Send +1 for each float32 value above the threshold, else -1, 32 in 4 bytes: MXNet 2.0's 1bit.

    What is left out is added to the next gradient.
    """
    return Codec(lib.HVD_CODEC_1BIT, float(threshold))


def top_k(ratio: float = 0.01) -> Codec:
    """Send the largest float32 values alone, ceil(ratio * n) of n, each as index and value.

    What is left out is added to the next gradient (Aji and Heafield, "Sparse communication for
    distributed gradient descent", EMNLP 2017). It takes 2 * ratio of the bytes from each rank to
    each other, so it saves something as long as ratio * ranks is well below 1.

    :raises ValueError: a ratio that is not in (0, 1].
    """
    if not 0 < ratio <= 1:
        raise ValueError(f"top_k(ratio={ratio}): expected a ratio above 0 and at most 1")
    return Codec(lib.HVD_CODEC_TOPK, float(ratio))


class Compression:
    """What ``compression=`` takes; any class with ``compress`` and ``decompress`` will do as well.

    >>> import hvdlite as hvd
    >>> hvd.Compression.two_bit(threshold=0.25).parameter
    0.25
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    two_bit = staticmethod(two_bit)
    one_bit = staticmethod(one_bit)
    top_k = staticmethod(top_k)


_TYPES = {
    "none": lambda: NoneCompressor,
    "fp16": lambda: FP16Compressor,
    "bf16": lambda: BF16Compressor,
    "2bit": two_bit,
    "1bit": one_bit,
    "topk": top_k,
}


def from_params(params: Dict[str, Any]):
    """Return the compression that MXNet's ``compression_params`` describe.

    :param params: ``{"type": "2bit", "threshold": 0.5}``, or another type with its argument.
    :raises ValueError: no such type, or an argument that it does not take.

    >>> from_params({"type": "2bit", "threshold": 0.5}) == two_bit(0.5)
    True
    """
    arguments = dict(params)
    kind = arguments.pop("type", None)
    if kind not in _TYPES:
        raise ValueError(
            f"compression type {kind!r}: expected one of {', '.join(_TYPES)}, as in "
            "{'type': '2bit', 'threshold': 0.5}"
        )
    try:
        return _TYPES[kind](**{name: float(value) for name, value in arguments.items()})
    except TypeError as error:
        raise ValueError(f"compression type '{kind}' with {arguments}: {error}") from None


def check_compression(compression) -> None:
    """Raise ValueError for what can't be a compression."""
    methods = (getattr(compression, name, None) for name in ("compress", "decompress"))
    if isinstance(compression, Codec) or all(map(callable, methods)):
        return
    raise ValueError(
        f"compression is {compression!r}: expected hvd.Compression.none, .fp16 or .bf16, a call of "
        "hvd.Compression.two_bit(), .one_bit() or .top_k(), or a class with compress() and "
        "decompress()"
    )
