"""Prepares ``import mxnet`` and registers the kvstore after it, whichever is imported first.

This module never imports MXNet itself: hvdlite also serves NumPy arrays and launchers.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from hvdlite.patches import kvstore_hooks


def watch() -> None:
    """Register the kvstore now if MXNet is imported, else right after its import."""
    if sys.modules.get("mxnet"):
        kvstore_hooks.register(sys.modules["mxnet"])
    elif not any(isinstance(finder, _MXNetFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _MXNetFinder())


class _MXNetFinder:
    """Lets the other finders find MXNet, and wraps its import."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname != "mxnet":
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next(filter(None, specs), None)
        if spec and spec.loader:
            execute = spec.loader.exec_module

            def exec_module(module):
                from hvdlite.patches.removed_names import as_mxnet_expects

                with as_mxnet_expects(), _packages_named():
                    execute(module)
                kvstore_hooks.register(module)

            spec.loader.exec_module = exec_module
        return spec


@contextlib.contextmanager
def _packages_named() -> Iterator[None]:
    """MXNet's wheel takes libraries of the system that a bare Debian lacks: say how to get them."""
    try:
        yield
    except OSError as error:
        if "cannot open shared object" not in str(error):
            raise
        raise OSError(f"{error}: apt-get install libgomp1 libquadmath0") from error
