"""What tests of MXNet 1 need in order to pass with MXNet 2, whose Gluon takes mx.np arrays alone.

When this has been imported, blocks and parameters take mx.nd arrays as well.
"""

import functools
import importlib

import mxnet as mx
from versions import MXNET2

metric = mx.gluon.metric if MXNET2 else mx.metric


def __getattr__(name: str):
    """Give amp to those who ask: with it imported, custom operators crash MXNet 1 at exit."""
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
    """Also in its subclasses: Gluon has given most of those a copy of the method."""
    if name in vars(owner):
        setattr(owner, name, _converting(vars(owner)[name]))
    for subclass in owner.__subclasses__():
        _convert(subclass, name)


if MXNET2:
    # scripts for MXNet 2 call it, because without it no optimizer takes Gluon's arrays
    mx.npx.set_np()
    _convert(mx.gluon.Block, "__call__")
    _convert(mx.gluon.Parameter, "set_data")
