"""hvdlite for MXNet: the same names as ``hvdlite`` itself, on ``mx.nd`` and ``mx.np`` arrays."""

try:
    import mxnet  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"hvdlite's MXNet names need MXNet ({error}): run `pip install 'hvdlite[mxnet]'`"
    ) from error

import hvdlite

__all__ = list(hvdlite.__all__)


def __getattr__(name):
    if name not in __all__:
        raise AttributeError(f"module 'hvdlite.mxnet' has no attribute '{name}'")
    value = globals()[name] = getattr(hvdlite, name)
    return value  # from now on found without this call
