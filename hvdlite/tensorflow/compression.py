"""Compression of TensorFlow's tensors, as nodes of the graph; any class like these will do."""

import tensorflow as tf

from hvdlite.training.codecs import Cast, NoneCompressor


class FP16Compressor(Cast):
    """Send float32 and float64 tensors as float16; sums are made in float32 and rounded once."""

    dtype, wide = tf.float16, (tf.float32, tf.float64)
    cast = staticmethod(tf.cast)


class Compression:
    """The values of ``compression=``."""

    none = NoneCompressor
    fp16 = FP16Compressor
