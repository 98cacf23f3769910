"""Makes ``import mxnet`` work on new NumPy and Python, and corrects faults of MXNet.

It does not matter whether hvdlite or MXNet is imported first. This module never imports MXNet,
because programs for NumPy arrays, and launchers, do not need MXNet.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from hvdlite.patches import kvstore_hooks
from hvdlite.patches.after_import import AfterImport


def watch() -> None:
    """Correct MXNet's faults: now if MXNet is already imported, otherwise when it is imported."""
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
    """Replace the function that frees arrays made by ``from_numpy``, such as shared gradients.

    MXNet's function crashes if, at the end of Python, an array is freed after MXNet's module.
    """
    import ctypes  # not at the top, where it takes 5 ms; by now MXNet has imported it

    drop = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(("Py_DecRef", ctypes.pythonapi))
    lasting = module.DeleterFunc(lambda tensor: drop(tensor.contents.manager_ctx))
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(lasting))
    module.dl_managed_tensor_deleter = lasting


_finder = AfterImport("mxnet", _execute)


@contextlib.contextmanager
def _packages_named() -> Iterator[None]:
    """If the block finds a system library missing, raise an error that says how to install it."""
    try:
        yield
    except OSError as error:
        if "cannot open shared object" not in str(error):
            raise
        raise OSError(f"{error}: run `apt-get install libgomp1 libquadmath0`") from error
