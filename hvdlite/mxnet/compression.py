"""Compression of MXNet gradients.

The C core applies codecs inside the allreduce (``training/codecs.py``). Users may also pass a class
with Horovod's two static methods ``compress`` and ``decompress``.
"""

from typing import Any, Callable, Dict

import numpy as np

from hvdlite.core.native import ffi, lib
from hvdlite.training.codecs import Cast, Codec, Codecs, NoneCompressor


class FP16Compressor(Cast):
    """Send float32 and float64 gradients as float16; add in float32 and round the sum once."""

    codec = Codec(lib.HVD_CODEC_FLOAT16)
    dtype, wide = "float16", (np.float32, np.float64)
    cast = staticmethod(lambda tensor, dtype: tensor.astype(dtype))


class BF16Compressor(NoneCompressor):
    """Send float32 gradients as bfloat16, which has float32's range; send other dtypes unchanged.

    The C core does the conversion, because MXNet 1.9.1 truncates instead of rounding, and converts
    some NaNs to infinity.
    """

    codec = Codec(lib.HVD_CODEC_BFLOAT16)


class Compression(Codecs):
    """The values for the argument ``compression``.

    >>> import hvdlite as hvd
    >>> hvd.Compression.two_bit(threshold=0.25).parameter
    0.25
    """

    fp16 = FP16Compressor
    bf16 = BF16Compressor


_TYPES: Dict[str, Callable[..., Any]] = {
    ffi.string(lib.codec_name(codec)).decode(): make
    for codec, make in (
        (lib.HVD_CODEC_NONE, lambda: NoneCompressor),
        (lib.HVD_CODEC_FLOAT16, lambda: FP16Compressor),
        (lib.HVD_CODEC_BFLOAT16, lambda: BF16Compressor),
        (lib.HVD_CODEC_2BIT, Codecs.two_bit),
        (lib.HVD_CODEC_1BIT, Codecs.one_bit),
        (lib.HVD_CODEC_TOPK, Codecs.top_k),
    )
}


def from_params(params: Dict[str, Any]):
    """Return the compression that MXNet's ``compression_params`` describe.

    :param params: ``{"type": "2bit", "threshold": 0.5}``, or another type with its argument.
    :raises ValueError: an unknown type, or an argument that the type does not take.

    >>> from_params({"type": "2bit", "threshold": 0.5}) == Compression.two_bit(0.5)
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
