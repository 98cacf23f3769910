"""Collectives under ``mx.autograd.record()``: backward runs the collective that is their gradient.

The gradients are those of the sum of all ranks' losses: what a rank sent reaches the losses of all
that received it. Backward must reach the result on every rank, or on none.
"""

from typing import Callable

import mxnet as mx
from mxnet import autograd


def recorded(own, forward: Callable, backward: Callable):
    """Return ``forward(own)``, and have ``backward(its gradient)`` give the gradient of ``own``.

    :param own: a recorded copy of what the user gave; a 0-d one is one row to both functions.
    :param forward: may work in place.
    :param backward: may work in place; gets an ``mx.nd`` array, on a thread of MXNet's.
    """
    if not own.shape:
        with mx.util.np_shape():
            own = own.reshape((1,))  # recorded, too
    return _Collective(forward, backward)(own)


class _Collective(autograd.Function):
    def __init__(self, forward: Callable, backward: Callable) -> None:
        super().__init__()
        self._forward = forward
        self._backward = backward
        self._last = None  # gradient of an earlier backward, with retain_graph=True

    def forward(self, tensor):
        return self._forward(tensor.detach())

    def backward(self, grad):
        if self._last is not None:  # a name is in use once at a time
            self._last.wait_to_read()
        self._last = self._backward(grad.copy())
        return self._last


def no_gradient(reason: str) -> Callable:
    """Return a backward for what has none: an error if it is reached."""

    def backward(grad):
        raise ValueError(reason)

    return backward
