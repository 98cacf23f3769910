"""Lets the tests hand mx.nd arrays to Gluon's blocks also in MXNet 2, where these take mx.np alone.

Importing it is enough. In MXNet 1 it does nothing.
"""

import functools

import mxnet as mx

MXNET2 = not mx.__version__.startswith("1.")


def _as_gluon_takes_it(array):
    return array.as_np_ndarray() if isinstance(array, mx.nd.NDArray) else array


def _converting(method):
    @functools.wraps(method)
    def call(self, *arrays, **options):
        return method(self, *map(_as_gluon_takes_it, arrays), **options)

    return call


if MXNET2:
    for owner, name in (
        (mx.gluon.Block, "__call__"),
        (mx.gluon.HybridBlock, "__call__"),
        (mx.gluon.Parameter, "set_data"),
    ):
        setattr(owner, name, _converting(getattr(owner, name)))
