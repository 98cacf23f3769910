"""What ``import mxnet`` finds before it and gets after it, in whichever order hvdlite is imported.

Nothing is imported here before MXNet is: hvdlite is for NumPy arrays, and for launchers, as well.
"""

import importlib.abc
import sys

from hvdlite import _kvstore_hooks


def watch() -> None:
    """Register the kvstore now if MXNet is imported, else as soon as it is."""
    if sys.modules.get("mxnet"):
        _kvstore_hooks.register(sys.modules["mxnet"])
    elif not any(isinstance(finder, _MXNetFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _MXNetFinder())


class _MXNetFinder(importlib.abc.MetaPathFinder):
    """Has MXNet found by the others, and does before and after its import what it lacks."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname != "mxnet":
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next(filter(None, specs), None)
        if spec and spec.loader:
            execute = spec.loader.exec_module

            def exec_module(module):
                from hvdlite.removed_names import as_mxnet_expects

                with as_mxnet_expects():
                    execute(module)
                _kvstore_hooks.register(module)

            spec.loader.exec_module = exec_module
        return spec
