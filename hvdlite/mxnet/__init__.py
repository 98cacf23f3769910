"""hvdlite for MXNet: the same names as ``hvdlite`` itself, on ``mx.nd`` and ``mx.np`` arrays."""

from hvdlite.mxnet.removed_names import as_mxnet_expects

try:
    with as_mxnet_expects():
        import mxnet  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"hvdlite's MXNet names need MXNet ({error}): run `pip install 'hvdlite[mxnet]'`"
    ) from error

import hvdlite

__all__ = list(hvdlite.__all__)
globals().update({name: getattr(hvdlite, name) for name in __all__})
