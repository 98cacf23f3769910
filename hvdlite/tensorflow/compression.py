"""Compression of TensorFlow's tensors, as nodes of the graph; any class like these will do."""

from typing import Any, Tuple

import tensorflow as tf

from hvdlite.training.codecs import NoneCompressor


class FP16Compressor:
    """Send float32 and float64 tensors as float16; sums are made in float32 and rounded once."""

    @staticmethod
    def compress(tensor) -> Tuple[Any, Any]:
        """Return the tensor in float16 and its own dtype; other dtypes stay as they are."""
        if tensor.dtype not in (tf.float32, tf.float64):
            return tensor, None
        return tf.cast(tensor, tf.float16), tensor.dtype

    @staticmethod
    def decompress(tensor, ctx):
        """Return the tensor in the dtype it had."""
        return tensor if ctx is None else tf.cast(tensor, ctx)


class Compression:
    """What ``compression=`` takes."""

    none = NoneCompressor
    fp16 = FP16Compressor
