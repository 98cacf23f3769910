"""Prepares ``import mxnet``, and mends MXNet and registers the kvstore after it, in any order.

This module never imports MXNet itself: hvdlite also serves NumPy arrays and launchers.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from hvdlite.patches import kvstore_hooks
from hvdlite.patches.after_import import AfterImport


def watch() -> None:
    """Change MXNet now if it is imported, else right after its import."""
    if sys.modules.get("mxnet"):
        _change(sys.modules["mxnet"])
    elif _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def _execute(mxnet, code) -> None:
    from hvdlite.patches.removed_names import as_mxnet_expects

    with as_mxnet_expects(), _packages_named():
        code(mxnet)
    _change(mxnet)


def _change(mxnet) -> None:
    kvstore_hooks.register(mxnet)
    _let_memory_outlive(getattr(mxnet, "dlpack", mxnet.ndarray.ndarray))  # mxnet.dlpack in MXNet 2


def _let_memory_outlive(module) -> None:
    """Replace what frees the memory of ``from_numpy``, such as that of gradients which ranks share.

    MXNet's own function crashes if, at the end of Python, an array is freed after MXNet's
    module.
    """
    import ctypes  # imported here, because it takes 5 ms and MXNet has imported it already

    drop = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(("Py_DecRef", ctypes.pythonapi))
    lasting = module.DeleterFunc(lambda tensor: drop(tensor.contents.manager_ctx))
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(lasting))
    module.dl_managed_tensor_deleter = lasting


_finder = AfterImport("mxnet", _execute)


@contextlib.contextmanager
def _packages_named() -> Iterator[None]:
    """Say how to install system libraries that MXNet's wheel needs and a bare Debian lacks."""
    try:
        yield
    except OSError as error:
        if "cannot open shared object" not in str(error):
            raise
        raise OSError(f"{error}: run `apt-get install libgomp1 libquadmath0`") from error
