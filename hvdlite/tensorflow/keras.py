"""``import hvdlite.tensorflow.keras as hvd``: the names of ``hvdlite.keras``, as in Horovod."""

from hvdlite import keras

__all__ = list(keras.__all__)
__getattr__, __dir__ = keras.__getattr__, keras.__dir__
