"""SyncBatchNormalization: Keras's layer, with means and variances over the batches of all ranks."""

import keras
import tensorflow as tf

from hvdlite.core.process_set import global_process_set
from hvdlite.core.reduce_ops import Sum
from hvdlite.tensorflow.ops import allreduce


class SyncBatchNormalization(keras.layers.BatchNormalization):
    """``keras.layers.BatchNormalization`` on the joined batch of all ranks.

    Their parts may differ in size. On Keras's TensorFlow backend only.

    :param process_set: the ranks among which.
    :param kwargs: those of ``keras.layers.BatchNormalization``.
    :raises ValueError: Keras has another backend.
    """

    def __init__(self, process_set=global_process_set, **kwargs) -> None:
        if keras.backend.backend() != "tensorflow":
            raise ValueError(f"Keras's backend is {keras.backend.backend()}: expected tensorflow")
        super().__init__(**kwargs)
        self._process_set = process_set

    def _moments(self, inputs, mask):
        x = tf.cast(inputs, tf.float32)
        weights = tf.ones_like(x)
        if mask is not None:
            weights = weights * tf.cast(tf.expand_dims(mask, -1), tf.float32)
        parts = (weights, x * weights, x * x * weights)
        sums = tf.stack([tf.reduce_sum(part, self._reduction_axes) for part in parts])
        count, total, squares = tf.unstack(allreduce(sums, op=Sum, process_set=self._process_set))
        mean = total / count
        return mean, tf.maximum(squares / count - mean * mean, 0.0)
