"""broadcast, broadcast_ and allgather on MXNet arrays."""

import itertools

import mxnet as mx
import numpy as np
import pytest
from arrays import DTYPES, SHAPES, all_ranks, same_everywhere, to_mx, to_numpy, whole_numbers

import hvdlite as hvd


@pytest.mark.parametrize("in_place", [False, True], ids=["out", "in_place"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_broadcast_from_each_root(dtype, in_place, rank, size):
    for shape, root in itertools.product(SHAPES, range(size)):
        own = whole_numbers(dtype, shape, rank)
        x = to_mx(own, dtype)
        y = (hvd.broadcast_ if in_place else hvd.broadcast)(x, root)
        assert (y is x) == in_place
        np.testing.assert_array_equal(to_numpy(y), all_ranks(dtype, shape)[root])
        if not in_place:
            np.testing.assert_array_equal(to_numpy(x), own)


def test_broadcast_0d(rank, size):
    with mx.util.np_shape(True):
        y = hvd.broadcast(mx.np.array(rank + 1.5), size - 1)
        assert y.shape == ()
        assert y.asnumpy() == size + 0.5
        assert isinstance(y, mx.np.ndarray)


def test_broadcast_keeps_every_bit():
    bits = np.random.RandomState(hvd.rank()).randint(0, 2**31, 1001).astype("int32")
    y = hvd.broadcast(mx.nd.array(bits.view("float32")), 0).asnumpy()
    assert same_everywhere(y)


@pytest.mark.parametrize("root", [-1, 99])
def test_broadcast_from_nobody(root, size):
    with pytest.raises(
        ValueError, match=f"'broadcast.w': root_rank {root} is not .*expected 0 to {size - 1}"
    ):
        hvd.broadcast(mx.nd.ones(3), root, name="w")


@pytest.mark.parametrize("dtype", DTYPES)
def test_allgather_equal_parts(dtype, rank):
    for shape in SHAPES:
        x = to_mx(whole_numbers(dtype, shape, rank), dtype)
        y = hvd.allgather(x)
        assert y.dtype == x.dtype
        np.testing.assert_array_equal(to_numpy(y), np.concatenate(list(all_ranks(dtype, shape))))


@pytest.mark.parametrize("columns", [(), (3,), (2, 5)], ids=str)
@pytest.mark.parametrize("first", [0, 1, 50_000])
def test_allgather_uneven_parts(first, columns, rank, size):
    """Rank 0 brings `first` rows, every other one more than the rank before; so 0 is empty."""
    parts = [np.full((first + 2 * r, *columns), r + 1.0, "float32") for r in range(size)]
    with mx.util.np_shape(True):
        y = hvd.allgather(mx.np.array(parts[rank]))
        assert isinstance(y, mx.np.ndarray)
        np.testing.assert_array_equal(y.asnumpy(), np.concatenate(parts))


def test_allgather_of_nothing_but_the_last_rank(rank, size):
    rows = 4 if rank == size - 1 else 0
    with mx.util.np_shape(True):
        y = hvd.allgather(mx.np.full((rows, 3), rank))
        np.testing.assert_array_equal(y.asnumpy(), np.full((4, 3), size - 1))


def test_allgather_of_nothing_at_all():
    with mx.util.np_shape(True):
        assert hvd.allgather(mx.np.zeros((0, 3))).shape == (0, 3)


def test_allgather_0d(rank, size):
    with mx.util.np_shape(True):
        y = hvd.allgather(mx.np.array(float(rank)))
        assert y.asnumpy().tolist() == list(range(size))


def test_allgather_with_rows_that_change(rank, size):
    """The same name again, with other rows: what the cache knows of it is out of date."""
    with mx.util.np_shape(True):
        for step in range(6):
            rows = [(r + step // 2) % 4 for r in range(size)]
            y = hvd.allgather(mx.np.full((rows[rank], 2), rank), name="again")
            expected = np.concatenate([np.full((n, 2), r) for r, n in enumerate(rows)])
            y.wait_to_read()  # asnumpy() does not wait for an array without elements
            np.testing.assert_array_equal(y.asnumpy(), expected)
