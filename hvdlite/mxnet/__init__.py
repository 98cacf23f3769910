"""hvdlite for MXNet: the same names as ``hvdlite`` itself, on ``mx.nd`` and ``mx.np`` arrays."""

try:
    import mxnet  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"hvdlite.mxnet needs MXNet ({error}): run `pip install mxnet==1.9.1`"
    ) from error

import hvdlite
from hvdlite.core.lazy_names import lazy_names

__all__ = list(hvdlite.__all__)
__getattr__, __dir__ = lazy_names(globals(), {"hvdlite": __all__}, {})
