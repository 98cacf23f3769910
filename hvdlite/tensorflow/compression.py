"""Compression of TensorFlow's tensors with TensorFlow operations, so that graphs can contain it."""

import tensorflow as tf

from hvdlite.training.codecs import Cast, NoneCompressor


class FP16Compressor(Cast):
    """Send float32 and float64 tensors as float16; add in float32 and round the sum once."""

    dtype, wide = tf.float16, (tf.float32, tf.float64)
    cast = staticmethod(tf.cast)


class Compression:
    """The values for the argument ``compression``."""

    none = NoneCompressor
    fp16 = FP16Compressor
