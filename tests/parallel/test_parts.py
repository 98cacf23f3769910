"""reducescatter and alltoall, on MXNet and NumPy arrays: rows dealt out to ranks."""

import mxnet as mx
import numpy as np
import pytest
from libraries import both_libraries

import hvdlite as hvd


@pytest.mark.parametrize(
    "make",
    [tuple, np.array, lambda s: list(map(float, s)), lambda s: mx.nd.array(s, dtype="int32")],
)
def test_splits_of_any_kind(make, rank, size):
    y, received = hvd.alltoall(mx.nd.full((size, 2), rank), splits=make([1] * size))
    np.testing.assert_array_equal(y.asnumpy()[:, 0], np.arange(size))


@both_libraries
def test_an_ndarray_of_floats_as_splits_is_refused_as_by_horovod(lib, size):
    x = lib.make(np.ones((size, 2), "float32"))
    with pytest.raises(ValueError, match="splits are an NDArray of float32: expected whole"):
        lib.hvd.alltoall(x, splits=mx.nd.ones(size), name="x")
