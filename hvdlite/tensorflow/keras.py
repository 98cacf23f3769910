"""``import hvdlite.tensorflow.keras as hvd``: the names of ``hvdlite.keras``, as in Horovod."""

from hvdlite import keras

__all__ = list(keras.__all__)


def __getattr__(name):
    return getattr(keras, name)
