"""The names of ``horovod.mxnet.mpi_ops``, for scripts that import them from there."""

import hvdlite
from hvdlite.core.lazy_names import lazy_names

__all__ = list(hvdlite.__all__)
__getattr__, __dir__ = lazy_names(globals(), {"hvdlite": __all__}, {})
