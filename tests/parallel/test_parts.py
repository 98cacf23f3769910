"""reducescatter and alltoall, on MXNet and NumPy arrays: rows dealt out to ranks."""

import mxnet as mx
import numpy as np
import pytest
from arrays import (
    EPSILON,
    INTEGERS,
    MXNet,
    NumPy,
    all_ranks,
    both_libraries,
    part_of,
    to_mx,
    to_numpy,
    toward_zero,
    whole_numbers,
)
from test_operations import NUMPY_OF, every_dtype

import hvdlite as hvd

SHAPES = ((0,), (1,), (2, 0, 3), (5, 3), (17,), (70_001,), (3, 2, 40_000))


def expected_sum(dtype, shape):
    return all_ranks(dtype, shape).sum(0, dtype=bool if dtype == "bool" else None)


@every_dtype
def test_reducescatter_sum(library, dtype, rank, size):
    for shape in SHAPES:
        own = whole_numbers(dtype, shape, rank)
        x = library.make(own, dtype)
        y = library.collectives.reducescatter(x, op=hvd.Sum)
        assert y.dtype == x.dtype
        expected = expected_sum(dtype, shape)[part_of(shape[0], rank, size)]
        got = library.read(y)
        assert got.shape == expected.shape
        np.testing.assert_array_equal(got, expected, f"shape {shape}")
        np.testing.assert_array_equal(library.read(x), own)


@both_libraries
@pytest.mark.parametrize("dtype", ["float16", "float32", "int32"])
@pytest.mark.parametrize("op", ["Average", *NUMPY_OF])
def test_reducescatter_of_each_operation(library, dtype, op, rank, size):
    everyone = all_ranks(dtype, (11, 3))
    y = library.collectives.reducescatter(
        library.make(whole_numbers(dtype, (11, 3), rank), dtype), op=getattr(hvd, op)
    )
    if op == "Average":
        total = everyone.sum(0)
        expected = toward_zero(total, size) if dtype in INTEGERS else total / size
    else:
        expected = NUMPY_OF[op](everyone, axis=0)
    np.testing.assert_allclose(
        library.read(y), expected[part_of(11, rank, size)], EPSILON.get(dtype, 0)
    )


@both_libraries
def test_reducescatter_averages_and_scales(library, rank, size):
    x = library.make(np.full((size, 2), rank + 1.0), "float32")
    y = library.collectives.reducescatter(x, prescale_factor=4, postscale_factor=0.5)
    np.testing.assert_allclose(library.read(y), np.full((1, 2), size + 1.0), rtol=1e-6)


def test_reducescatter_of_reals_is_a_part_of_the_allreduce(rank, size):
    x = mx.nd.array(np.random.RandomState(rank).randn(30_001))
    part = hvd.reducescatter(x).asnumpy()
    whole = hvd.allreduce(x).asnumpy()
    np.testing.assert_allclose(part, whole[part_of(30_001, rank, size)], 1e-5, 1e-6)


def test_results_are_of_the_kind_of_the_input(rank, size):
    with mx.util.np_shape(True):
        x = mx.np.full((size, 3), rank)
        assert isinstance(hvd.reducescatter(x), mx.np.ndarray)
        y, received = hvd.alltoall(x, splits=[1] * size)
        assert isinstance(y, mx.np.ndarray)
        assert isinstance(received, mx.np.ndarray)
    y, received = hvd.alltoall(mx.nd.ones((size, 3)), splits=[1] * size)
    assert not isinstance(y, mx.np.ndarray)
    assert received.dtype == np.int32
    assert received.asnumpy().tolist() == [1] * size


@both_libraries
@pytest.mark.parametrize("kind", ["reducescatter", "alltoall"])
def test_0d_arrays_have_no_rows(library, kind):
    with mx.util.np_shape(True):
        x = mx.np.array(2.0) if library is MXNet else np.array(2.0)
        with pytest.raises(ValueError, match=f"'{kind}.x' is 0-d"):
            getattr(library.collectives, kind)(x, name="x")


def rows_between(shape: str, size: int) -> np.ndarray:
    """Rows that each rank (a row) has for each other (a column)."""
    random = np.random.RandomState(3)
    return {
        "equal": np.full((size, size), 2),
        "nothing": np.zeros((size, size), int),
        "uneven": random.randint(0, 5, (size, size)),
        "to the last": np.tile([0] * (size - 1) + [3], (size, 1)),
        "from rank 0": np.array([[4] * size] + [[0] * size] * (size - 1)),
        "long": random.randint(0, 2, (size, size)) * 60_000,
    }[shape]


def block(dtype: str, rows: int, sender: int, receiver: int) -> np.ndarray:
    return whole_numbers(dtype, (rows, 3), 10 * sender + receiver)


@every_dtype
def test_alltoall_with_splits(library, dtype, rank, size):
    for shape in ("equal", "nothing", "uneven", "to the last", "from rank 0"):
        check_alltoall(library, dtype, shape, rank, size)


@both_libraries
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_long_alltoall(library, dtype, rank, size):
    check_alltoall(library, dtype, "long", rank, size)


def check_alltoall(library, dtype, shape, rank, size):
    rows = rows_between(shape, size)
    sent = np.concatenate([block(dtype, n, rank, to) for to, n in enumerate(rows[rank])])
    x = library.make(sent, dtype)
    y, received = library.collectives.alltoall(x, splits=rows[rank].tolist())
    parts = [block(dtype, n, sender, rank) for sender, n in enumerate(rows[:, rank])]
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(library.read(y), np.concatenate(parts), shape)
    np.testing.assert_array_equal(library.read(received), rows[:, rank])
    np.testing.assert_array_equal(library.read(x), sent)


@both_libraries
def test_alltoall_without_splits(library, rank, size):
    x = library.make(np.arange(2 * size) + 100 * rank, "int64")
    y = library.collectives.alltoall(x)
    expected = np.concatenate([2 * rank + np.arange(2) + 100 * r for r in range(size)])
    np.testing.assert_array_equal(library.read(y), expected)


@both_libraries
def test_alltoall_leaves_the_rows_past_its_splits(library, rank, size):
    """As Horovod does."""
    x = library.make(np.arange(size + 5) + 100 * rank, "int32")
    y, received = library.collectives.alltoall(x, splits=[1] * size)
    np.testing.assert_array_equal(library.read(y), rank + 100 * np.arange(size))


@pytest.mark.parametrize(
    "make",
    [tuple, np.array, lambda s: list(map(float, s)), lambda s: mx.nd.array(s, dtype="int32")],
)
def test_splits_of_any_kind(make, rank, size):
    y, received = hvd.alltoall(mx.nd.full((size, 2), rank), splits=make([1] * size))
    np.testing.assert_array_equal(y.asnumpy()[:, 0], np.arange(size))


@both_libraries
def test_bad_splits_are_refused(library, size):
    x = library.make(np.ones((size, 2)), "float32")
    alltoall = library.collectives.alltoall
    with pytest.raises(ValueError, match=rf"'alltoall.x': splits are of shape \({size + 1},\): ex"):
        alltoall(x, splits=[0] * (size + 1), name="x")
    with pytest.raises(ValueError, match=f"add up to {size + 1}: expected .* at most {size}, "):
        alltoall(x, splits=[size + 1] + [0] * (size - 1), name="x")
    for bad in (-1, 0.5):
        with pytest.raises(ValueError, match="expected whole numbers"):
            alltoall(x, splits=[bad] + [0] * (size - 1), name="x")
    if size > 1:
        x = library.make(np.ones((size + 1, 2)), "float32")
        with pytest.raises(ValueError, match=f"{size + 1} rows can't be dealt out .* {size} ranks"):
            alltoall(x, name="x")


@both_libraries
@pytest.mark.parametrize("huge", [2**62, 2**63, 2**200, float("inf"), float("nan")])
def test_splits_whose_sum_overflows_are_refused(library, huge, size):
    """4 times 2**62 is 0 in 64 bits."""
    x = library.make(np.ones((size, 2)), "float32")
    with pytest.raises(ValueError, match=f"expected whole numbers of at most {size}, the first"):
        library.collectives.alltoall(x, splits=[huge] * size, name="x")


@both_libraries
def test_an_ndarray_of_floats_as_splits_is_refused_as_by_horovod(library, size):
    x = library.make(np.ones((size, 2)), "float32")
    with pytest.raises(ValueError, match="splits are an NDArray of float32: expected whole"):
        library.collectives.alltoall(x, splits=mx.nd.ones(size), name="x")


@both_libraries
def test_bad_splits_of_one_rank_are_told_to_all(library, several, rank, size):
    """The others do not wait for it, and may go on."""
    x, last = library.make(np.ones((size, 2)), "float32"), rank == size - 1
    text = f"^rank {size - 1}: tensor 'alltoall.x': splits .* up to {size + 1}: .* at most {size},"
    with pytest.raises(ValueError, match=text):
        library.collectives.alltoall(x, splits=[1] * (size - 1) + [1 + last], name="x")
    y, _ = library.collectives.alltoall(x, splits=[1] * size, name="x")
    assert len(y) == size


def test_alltoall_with_splits_that_change(rank, size):
    """The same name again: what the cache knows of it is out of date on some ranks."""
    for step in range(6):
        rows = (np.add.outer(np.arange(size), np.arange(size)) + step // 2) % 3
        rows[-1] = 1  # the last rank's own rows stay
        x = np.repeat(np.arange(size) + 10 * rank, rows[rank])
        y, received = hvd.numpy.alltoall(x, rows[rank], name="again")
        expected = np.repeat(rank + 10 * np.arange(size), rows[:, rank])
        np.testing.assert_array_equal(y, expected)
        np.testing.assert_array_equal(received, rows[:, rank])


def test_many_at_once(rank, size):
    """All kinds under way together, pushed before any is waited for."""
    results = []
    for i in range(20):
        x = mx.nd.full((size * 3 + 1, 2), rank + i)
        results.append((hvd.reducescatter(x, op=hvd.Sum), hvd.allreduce(x, op=hvd.Max)))
    for i, (part, most) in enumerate(results):
        assert (part.asnumpy() == sum(range(size)) + i * size).all()
        assert (most.asnumpy() == size - 1 + i).all()


@pytest.mark.usefixtures("several")
def test_disagreement_is_told_everywhere(rank):
    x = mx.nd.ones((4 + (rank == 0), 2))
    with pytest.raises((mx.MXNetError, hvd.HvdliteError)) as caught:
        hvd.reducescatter(x, name="w").wait_to_read()
    assert "'reducescatter.w': ranks disagree on the shape: rank 0: (5, 2); rank" in str(
        caught.value
    )
    assert len(set(hvd.allgather_object(str(caught.value)))) == 1
    columns = np.ones((4, 2 + (rank == 0)))
    with pytest.raises(hvd.HvdliteError, match=r"'alltoall.w': .* shape: rank 0: \(4, 3\); rank"):
        hvd.numpy.alltoall(columns, [1] + [0] * (hvd.size() - 1), name="w")
    op = hvd.Min if rank == 0 else hvd.Max
    with pytest.raises(hvd.HvdliteError, match="on the op: rank 0: Min; rank.*: Max"):
        hvd.numpy.reducescatter(np.ones(4), op=op, name="w")
    assert hvd.numpy.allreduce(np.ones(1), op=hvd.Sum)[0] == hvd.size()


def test_bfloat16(rank, size):
    """256 + 1 + 1: rounding after every addition would lose the ones."""
    x = to_mx(np.full((size, 2), 256.0 if rank == 0 else 1.0, "float32"), "bfloat16")
    y = to_numpy(hvd.reducescatter(x, op=hvd.Sum))
    assert y.shape == (1, 2)
    assert (y == {1: 256, 2: 256, 3: 258, 4: 260}.get(size, y)).all()


def test_of_numpy_only_what_it_can(rank):
    with pytest.raises(ValueError, match="dtype complex64 is not supported"):
        NumPy.collectives.reducescatter(np.ones(4, np.complex64))
