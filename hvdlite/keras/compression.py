"""Compression of the gradients of Keras, on any of its backends; any class like these will do."""

from typing import Any, Tuple

from keras import backend, ops

from hvdlite.training.codecs import NoneCompressor


class FP16Compressor:
    """Send float32 and float64 gradients as float16; sums are made in float32 and rounded once."""

    @staticmethod
    def compress(tensor) -> Tuple[Any, Any]:
        """Return the tensor in float16 and its own dtype; other dtypes stay as they are."""
        dtype = backend.standardize_dtype(tensor.dtype)
        if dtype not in ("float32", "float64"):
            return tensor, None
        return ops.cast(tensor, "float16"), dtype

    @staticmethod
    def decompress(tensor, ctx):
        """Return the tensor in the dtype it had."""
        return tensor if ctx is None else ops.cast(tensor, ctx)


class Compression:
    """What ``compression=`` takes."""

    none = NoneCompressor
    fp16 = FP16Compressor
