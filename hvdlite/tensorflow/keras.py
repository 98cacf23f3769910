"""The names of ``hvdlite.keras``, for scripts that import Horovod's ``tensorflow.keras``."""

from hvdlite import keras

__all__ = list(keras.__all__)
__getattr__, __dir__ = keras.__getattr__, keras.__dir__
