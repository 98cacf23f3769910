"""SyncBatchNormalization: batch normalization over the batches of all ranks, for Keras."""

import keras
import tensorflow as tf

from hvdlite.core.process_set import global_process_set
from hvdlite.core.reduce_ops import Sum, merged, summands
from hvdlite.tensorflow.ops import allreduce


class SyncBatchNormalization(keras.layers.BatchNormalization):
    """``keras.layers.BatchNormalization`` on the joined batch of all ranks.

    The ranks' batches may differ in size. Keras's backend must be TensorFlow. If the mean is 1000
    times the standard deviation, output and gradient differ from float64's by at most 1e-3.

    :param process_set: the ranks whose batches are joined.
    :param kwargs: the arguments of ``keras.layers.BatchNormalization``.
    :raises ValueError: Keras has another backend.
    """

    def __init__(self, process_set=global_process_set, **kwargs) -> None:
        if keras.backend.backend() != "tensorflow":
            raise ValueError(
                f"SyncBatchNormalization: Keras's backend is {keras.backend.backend()}: expected "
                "tensorflow: set KERAS_BACKEND=tensorflow"
            )
        super().__init__(**kwargs)
        self._process_set = process_set

    def _moments(self, inputs, mask):
        x = tf.cast(inputs, tf.float32)
        weights = tf.ones_like(x)
        if mask is not None:
            weights = weights * tf.cast(tf.expand_dims(mask, -1), tf.float32)
        count = tf.reduce_sum(weights, self._reduction_axes, keepdims=True)
        near = tf.reduce_sum(x * weights, self._reduction_axes, keepdims=True)
        near = tf.stop_gradient(tf.math.divide_no_nan(near, count))  # this rank's mean, rounded
        apart = (x - near) * weights
        parts = (weights, apart, apart * apart)
        sums = [tf.cast(tf.reduce_sum(part, self._reduction_axes), tf.float64) for part in parts]
        count, rest, squares = sums
        offset = tf.math.divide_no_nan(rest, count)
        mean = tf.cast(tf.reshape(near, offset.shape), tf.float64) + offset
        sums = tf.stack(summands(count, mean, squares - rest * offset))
        sums = tf.unstack(allreduce(sums, op=Sum, process_set=self._process_set))
        mean, variance = merged(*sums)
        return tf.cast(mean, tf.float32), tf.cast(tf.maximum(variance, 0.0), tf.float32)
