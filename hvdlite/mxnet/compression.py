"""Compression of gradients on their way: what is sent is smaller than what is kept."""

import inspect
from typing import Any, Tuple

import numpy as np


class NoneCompressor:
    """Send gradients as they are."""

    @staticmethod
    def compress(tensor) -> Tuple[Any, Any]:
        """Return what to send, and what ``decompress`` needs to undo it."""
        return tensor, None

    @staticmethod
    def decompress(tensor, context):
        """Return the tensor that came back in the form that was compressed."""
        return tensor


class FP16Compressor:
    """Send float32 and float64 gradients as float16; sums are made in float32 and rounded once."""

    @staticmethod
    def compress(tensor) -> Tuple[Any, Any]:
        """Return the tensor in float16 and its own dtype; other dtypes stay as they are."""
        if tensor.dtype not in (np.float32, np.float64):
            return tensor, None
        return tensor.astype("float16"), tensor.dtype

    @staticmethod
    def decompress(tensor, context):
        """Return the tensor in the dtype it had."""
        return tensor if context is None else tensor.astype(context)


class Compression:
    """What ``compression=`` takes; any class with these two static methods will do as well."""

    none = NoneCompressor
    fp16 = FP16Compressor


# What a kvstore's compression_params may name: the compressor's maker, which takes the other
# entries of the dict as its arguments.
_MAKERS = {
    "none": lambda: Compression.none,
    "fp16": lambda: Compression.fp16,
}


def compressor_of(params: dict):
    """Return the compressor that MXNet's ``compression_params`` ask for, such as {'type': 'fp16'}.

    :raises ValueError: an unknown type, or an entry that the type does not have.
    """
    options = dict(params)
    kind = options.pop("type", None)
    if kind not in _MAKERS:
        known = ", ".join(f"'{name}'" for name in _MAKERS)
        raise ValueError(f"compression_params: type is {kind!r}: expected one of {known}")
    maker = _MAKERS[kind]
    unknown = sorted(set(options) - set(inspect.signature(maker).parameters))
    if unknown:
        raise ValueError(f"compression_params: type '{kind}' has no {', '.join(unknown)}")
    return maker(**options)
