"""Clips gradients that are equal on all ranks; each rank reads only its part of the gradients."""

import math
import warnings
from typing import List

import mxnet as mx
import numpy as np

from hvdlite import numpy as collectives
from hvdlite.core import topology
from hvdlite.core.reduce_ops import Sum


def clip_global_norm(arrays: List, max_norm: float, check_isfinite: bool = True) -> float:
    """Scale arrays that are equal on all ranks, so that their joint 2-norm is at most max_norm.

    The function is faster than ``gluon.utils.clip_global_norm``: each rank computes the norm of
    only its part of the arrays, and does not write the arrays if the norm is small enough.
    Collective. Use it for averaged gradients::

        trainer.allreduce_grads()
        hvd.clip_global_norm([p.grad() for p in params], 1.0 * batch_size)
        trainer.update(batch_size)

    :param arrays: a list of NDArrays with the same shapes and values on all ranks.
    :param check_isfinite: warn if the norm is infinite or not a number.
    :return: the norm before scaling, bitwise equal on all ranks.
    :raises ValueError: there are no arrays.
    """
    if not arrays:
        raise ValueError("arrays is empty: expected the gradients to clip")
    squares = [_square(array) for array in arrays]
    mine = math.fsum(square.asscalar() for square in squares)
    total = collectives.allreduce(np.array([mine]), "clip_global_norm", op=Sum)
    norm = math.sqrt(total[0])
    if check_isfinite and not math.isfinite(norm):
        warnings.warn("nan or inf is detected. Clipping results will be undefined.", stacklevel=2)
    scale = max_norm / (norm + 1e-8)
    if not scale >= 1:  # a scale of NaN makes all arrays NaN, as in Gluon's function
        for array in arrays:
            array *= scale
    return norm


def _square(array):
    """Return the squared norm of this rank's part of the array."""
    # The rows of a sparse array may differ between ranks, so rank 0 takes the whole array.
    if array.stype != "default":
        return array.norm().square() if topology.rank() == 0 else mx.nd.zeros((1,))
    flat = array.as_nd_ndarray().reshape((-1,))
    n, self_ = topology.size(), topology.rank()
    begin, end = flat.size * self_ // n, flat.size * (self_ + 1) // n
    part = flat[begin:end] if begin < end else mx.nd.zeros((1,))
    if part.dtype == np.float16:  # MXNet has no dot product of float16, and squares may overflow
        part = part.astype(np.float32)
    return mx.nd.dot(part, part)
