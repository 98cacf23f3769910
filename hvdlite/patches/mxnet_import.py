"""Prepares ``import mxnet`` and registers the kvstore after it, whichever is imported first.

This module never imports MXNet itself: hvdlite also serves NumPy arrays and launchers.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from hvdlite.patches import kvstore_hooks
from hvdlite.patches.after_import import AfterImport


def watch() -> None:
    """Register the kvstore now if MXNet is imported, else right after its import."""
    if sys.modules.get("mxnet"):
        kvstore_hooks.register(sys.modules["mxnet"])
    elif _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def _execute(mxnet, code) -> None:
    from hvdlite.patches.removed_names import as_mxnet_expects

    with as_mxnet_expects(), _packages_named():
        code(mxnet)
    kvstore_hooks.register(mxnet)


_finder = AfterImport("mxnet", _execute)


@contextlib.contextmanager
def _packages_named() -> Iterator[None]:
    """MXNet's wheel takes libraries of the system that a bare Debian lacks: say how to get them."""
    try:
        yield
    except OSError as error:
        if "cannot open shared object" not in str(error):
            raise
        raise OSError(f"{error}: apt-get install libgomp1 libquadmath0") from error
