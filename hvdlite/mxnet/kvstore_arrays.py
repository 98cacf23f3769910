"""Prepares the arrays that callers pass to a kvstore."""

import functools
import numbers
from typing import Dict, List

import mxnet as mx
import numpy as np

from hvdlite.core.native import HvdliteValueError
from hvdlite.mxnet.optimizer import DistributedOptimizer
from hvdlite.mxnet.sparse import is_sparse


def unrecorded(method):
    """Make autograd not record the method: MXNet calls row_sparse_pull while autograd records."""

    @functools.wraps(method)
    def call(*args, **kwargs):
        with mx.autograd.pause():
            return method(*args, **kwargs)

    return call


def by_key(key, value) -> Dict[object, List[mx.nd.NDArray]]:
    """Return a dict from each key to a list of its arrays, one array for each context.

    :param key: an int, a string, or a list of these.
    :param value: an array or a list of arrays. If ``key`` is a list: a list with one such value
        for each key.
    """
    if not isinstance(key, (list, tuple)):
        return {key: _arrays_of(key, value)}
    if not isinstance(value, (list, tuple)) or len(key) != len(value):
        found = len(value) if isinstance(value, (list, tuple)) else type(value).__name__
        raise HvdliteValueError(
            f"keys {list(key)}: expected a list of {len(key)} values, got {found}"
        )
    joined: Dict[object, List[mx.nd.NDArray]] = {}
    for one, its_value in zip(key, value):
        joined.setdefault(one, []).extend(_arrays_of(one, its_value))
    return joined


def _arrays_of(key, value) -> List[mx.nd.NDArray]:
    arrays = list(value) if isinstance(value, (list, tuple)) else [value]
    if not isinstance(key, (str, numbers.Integral)) or not arrays:
        raise HvdliteValueError(
            f"key {key!r}: expected an int or a string as key, and at least one array"
        )
    for array in arrays:
        if not isinstance(array, mx.nd.NDArray):
            found = type(array).__name__
            raise HvdliteValueError(
                f"key '{key}': expected an NDArray or a list of them, got {found}"
            )
        if array.stype not in ("default", "row_sparse"):
            raise HvdliteValueError(
                f"key '{key}' has storage type {array.stype}: expected dense or row_sparse; "
                "convert it with tostype('default')"
            )
    return arrays


def check_plain(optimizer) -> None:
    """Raise HvdliteValueError unless ``optimizer`` is MXNet's and does not average gradients."""
    is_of_mxnet = isinstance(optimizer, mx.optimizer.Optimizer)
    if not is_of_mxnet or isinstance(optimizer, DistributedOptimizer):
        raise HvdliteValueError(
            f"expected a plain MXNet optimizer, got {type(optimizer).__name__}; a "
            "DistributedOptimizer averages by itself: use it with kvstore=None"
        )


def add_up(arrays: list, into) -> None:
    """Write the sum of dense arrays, on any contexts, to ``into``, which may be the first array."""
    if len(arrays) > 1:
        local = [array.as_nd_ndarray().as_in_context(into.context) for array in arrays]
        mx.nd.add_n(*local, out=into.as_nd_ndarray())
    elif arrays[0] is not into:
        arrays[0].as_nd_ndarray().copyto(into.as_nd_ndarray())


def deliver(value, outs: list) -> None:
    """Copy ``value`` to each array of ``outs``, and convert it to the storage type of the array."""
    for out in outs:
        same = value if value.stype == out.stype else value.tostype(out.stype)
        same.as_nd_ndarray().copyto(out.as_nd_ndarray())


def some_rows(key, value, row_ids):
    """Return the rows with the numbers ``row_ids`` of a dense or row_sparse value."""
    ids = np.unique(row_ids.asnumpy().astype(np.int64))
    if not len(ids):
        return mx.nd.sparse.zeros("row_sparse", value.shape, value.context, value.dtype)
    if not 0 <= ids[0] <= ids[-1] < value.shape[0]:
        raise HvdliteValueError(
            f"key '{key}': row_ids from {ids[0]} to {ids[-1]}: expected 0 to {value.shape[0] - 1}"
        )
    indices = mx.nd.array(ids, value.context, np.int64)
    if is_sparse(value):
        return mx.nd.sparse.retain(value, indices)
    rows = value.take(indices)
    return mx.nd.sparse.row_sparse_array((rows, indices), shape=value.shape, ctx=value.context)
