"""Restores names that MXNet uses, but that new versions of NumPy and Python have removed.

MXNet 1.6 to 2.0 read these names at import. Without them ``import mxnet`` raises an AttributeError
on NumPy 1.24 and later, and a ModuleNotFoundError on Python 3.12 and later. If hvdlite is imported
before MXNet, ``mxnet_import`` calls this module.
"""

import contextlib
import importlib.util
import re
import sys
import types
import warnings
from typing import Callable, Iterator, List

import numpy as np

from hvdlite.core.log import logger


def _stub(name: str) -> Callable:
    def moved(*args, **kwargs):
        raise RuntimeError(f"numpy.{name} was removed from NumPy 1.20: use numpy_financial.{name}")

    return moved


# Source of both tables: the removed names and their replacements in the release notes of NumPy 1.24
# and 2.0.
_RENAMED = {
    "Inf": "inf",
    "NAN": "nan",
    "NaN": "nan",
    "PINF": "inf",
    "alltrue": "all",
    "product": "prod",
    "round_": "round",
    "sometrue": "any",
    "trapz": "trapezoid",
}
_REMOVED = {
    "NINF": -np.inf,
    "NZERO": -0.0,
    "PZERO": 0.0,
    "bool": bool,
    "compat": types.SimpleNamespace(basestring=str),
    "float": float,
    "in1d": lambda a, b, *args, **kwargs: np.isin(np.ravel(a), b, *args, **kwargs),
    "int": int,
    "msort": lambda a: np.sort(a, axis=0),
    # Financial functions. Before NumPy removed these names, each was a stub that raised an error.
    **{name: _stub(name) for name in ("mirr", "npv", "pmt", "ppmt", "pv", "rate")},
}


def restore_numpy_names() -> List[str]:
    """Add to NumPy the names that MXNet uses and NumPy lacks; return these names."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # hasattr makes NumPy warn about names it will remove
        missing = [name for name in sorted({*_RENAMED, *_REMOVED}) if not hasattr(np, name)]
    for name in missing:
        setattr(np, name, getattr(np, _RENAMED[name]) if name in _RENAMED else _REMOVED[name])
    return missing


class _Version(tuple):
    """A version as a tuple of numbers, which is enough for MXNet's comparisons (">= 1.17")."""

    def __new__(cls, text: str):
        return super().__new__(cls, map(int, re.findall(r"\d+", text)))


@contextlib.contextmanager
def _distutils() -> Iterator[bool]:
    """Provide ``distutils.version`` inside the block; yield True if this Python lacks it.

    Remove it after the block, because other packages import distutils to test whether it exists.
    """
    if importlib.util.find_spec("distutils"):
        yield False
        return
    package, version = types.ModuleType("distutils"), types.ModuleType("distutils.version")
    vars(package).update(version=version)
    vars(version).update(LooseVersion=_Version, StrictVersion=_Version)
    lent = {module.__name__: module for module in (package, version)}
    sys.modules.update(lent)
    try:
        yield True
    finally:
        for name in lent:
            sys.modules.pop(name, None)


@contextlib.contextmanager
def as_mxnet_expects() -> Iterator[None]:
    """Provide the removed names that ``import mxnet`` needs inside the block, and log them.

    NumPy's names remain after the block, because MXNet reads some of them later.
    """
    names = restore_numpy_names()
    if names:
        logger.info("put back into NumPy %s for MXNet: %s", np.__version__, ", ".join(names))
    with _distutils() as was_missing:
        if was_missing:
            logger.info("gave MXNet a module distutils.version, which this Python lacks")
        yield
