"""Make tests for MXNet 1 pass with MXNet 2, whose Gluon takes only mx.np arrays.

After the import of this module, blocks and parameters also take mx.nd arrays.
"""

import functools
import importlib

import mxnet as mx
from versions import MXNET2

metric = mx.gluon.metric if MXNET2 else mx.metric


def __getattr__(name: str):
    """Import amp when a test uses amp: with amp, custom operators crash MXNet 1 at exit."""
    if name == "amp":
        return importlib.import_module("mxnet.amp" if MXNET2 else "mxnet.contrib.amp")
    raise AttributeError(name)


def as_gluon_takes_it(array):
    return array.as_np_ndarray() if MXNET2 and isinstance(array, mx.nd.NDArray) else array


def _converting(method):
    @functools.wraps(method)
    def call(self, *arrays, **options):
        return method(self, *map(as_gluon_takes_it, arrays), **options)

    return call


def _convert(owner, name: str) -> None:
    """Make a method convert arrays, in a class and in subclasses to which Gluon has copied it."""
    if name in vars(owner):
        setattr(owner, name, _converting(vars(owner)[name]))
    for subclass in owner.__subclasses__():
        _convert(subclass, name)


if MXNET2:
    # scripts for MXNet 2 call this, because otherwise optimizers refuse Gluon's arrays
    mx.npx.set_np()
    _convert(mx.gluon.Block, "__call__")
    _convert(mx.gluon.Parameter, "set_data")
