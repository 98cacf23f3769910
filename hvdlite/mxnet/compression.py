"""Compression of gradients on their way: what is sent is smaller than what is kept."""

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
