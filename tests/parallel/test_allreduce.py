"""allreduce and allreduce_ on MXNet arrays: dtypes, shapes, operations and scales."""

import mxnet as mx
import numpy as np
import pytest
from arrays import (
    DTYPES,
    EPSILON,
    FLOATS,
    INTEGERS,
    SHAPES,
    all_ranks,
    same_everywhere,
    to_mx,
    to_numpy,
    toward_zero,
    whole_numbers,
)

import hvdlite as hvd

both_places = pytest.mark.parametrize("in_place", [False, True], ids=["out", "in_place"])


def reduce(x, in_place: bool, **options):
    """The allreduce; out of place the input must stay as it was."""
    if in_place:
        y = hvd.allreduce_(x, **options)
        assert y is x
        return y
    before = to_numpy(x)
    y = hvd.allreduce(x, **options)
    assert y is not x
    np.testing.assert_array_equal(to_numpy(x), before)
    assert y.dtype == x.dtype
    assert y.shape == x.shape
    return y


@both_places
@pytest.mark.parametrize("dtype", DTYPES)
def test_sum_is_exact(dtype, in_place, rank):
    for shape in SHAPES:
        x = to_mx(whole_numbers(dtype, shape, rank), dtype)
        y = to_numpy(reduce(x, in_place, op=hvd.Sum))
        expected = all_ranks(dtype, shape).sum(0, dtype=bool if dtype == "bool" else None)
        np.testing.assert_array_equal(y, expected, f"shape {shape}")


@both_places
@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
def test_average(dtype, in_place, rank, size):
    for shape in SHAPES:
        x = to_mx(whole_numbers(dtype, shape, rank), dtype)
        y = to_numpy(reduce(x, in_place))
        total = all_ranks(dtype, shape).sum(0)
        if dtype in INTEGERS:
            np.testing.assert_array_equal(y, toward_zero(total, size), f"shape {shape}")
        else:
            np.testing.assert_allclose(y, total / size, EPSILON[dtype], 0, f"shape {shape}")
        assert same_everywhere(y)


@pytest.mark.parametrize("dtype", FLOATS)
def test_scales(dtype, rank):
    x = to_mx(whole_numbers(dtype, (19,), rank), dtype)
    y = hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)
    expected = all_ranks(dtype, (19,)).sum(0) * 1.5
    np.testing.assert_allclose(to_numpy(y), expected, rtol=EPSILON[dtype])


@pytest.mark.parametrize("dtype", INTEGERS)
def test_scaled_integers_are_truncated(dtype, rank):
    x = to_mx(whole_numbers(dtype, (19,), rank), dtype)
    doubled = hvd.allreduce(x, op=hvd.Sum, prescale_factor=2)
    halved = hvd.allreduce(x, op=hvd.Sum, postscale_factor=0.5)
    total = all_ranks(dtype, (19,)).sum(0)
    np.testing.assert_array_equal(doubled.asnumpy(), 2 * total)
    np.testing.assert_array_equal(halved.asnumpy(), toward_zero(total, 2))


def test_scaled_average(rank, size):
    y = hvd.allreduce(mx.nd.array([rank + 1.0]), prescale_factor=4, postscale_factor=0.25)
    np.testing.assert_allclose(y.asnumpy(), (size + 1) / 2, rtol=1e-6)


@pytest.mark.parametrize("average, expected_op", [(True, "Average"), (False, "Sum")])
def test_average_is_the_older_spelling_of_op(average, expected_op, rank):
    x = mx.nd.array([rank, 1.0])
    old, new = hvd.allreduce(x, average=average), hvd.allreduce(x, op=getattr(hvd, expected_op))
    np.testing.assert_array_equal(old.asnumpy(), new.asnumpy())


def test_average_and_op_together_are_refused():
    with pytest.raises(ValueError, match="give op or average, not both"):
        hvd.allreduce(mx.nd.ones(1), average=True, op=hvd.Sum)


@pytest.mark.parametrize("dtype", FLOATS)
def test_random_numbers_have_the_same_bits_on_all_ranks(dtype, size):
    shape = (5, 20_001)
    everyone = [np.random.RandomState(r).randn(*shape).astype("float32") for r in range(size)]
    y = to_numpy(hvd.allreduce(to_mx(everyone[hvd.rank()], dtype), op=hvd.Sum))
    rounded = sum(to_numpy(to_mx(x, dtype)).astype("float64") for x in everyone)
    np.testing.assert_allclose(y, rounded, rtol=EPSILON[dtype], atol=8 * EPSILON[dtype])
    assert same_everywhere(y)


def nearest(x: float, dtype: str) -> np.float32:
    """Ties to even, as everywhere; MXNet's own cast to bfloat16 cuts off."""
    if dtype == "float16":
        return np.float32(np.float16(x))
    bits = int(np.float32(x).view(np.uint32))
    return np.uint32((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bits_are_summed_in_float32(dtype, rank, size):
    """One big and many small addends: rounding after every addition would lose the small ones."""
    big = 2.0 ** (11 if dtype == "float16" else 8)
    x = to_mx(np.array([big if rank == 0 else 1.0], "float32"), dtype)
    y = to_numpy(hvd.allreduce(x, op=hvd.Sum))
    if hvd.cross_size() > 1 and hvd.local_size() > 1:  # rounded on each host, too
        assert abs(y - (big + size - 1)) <= 2
    else:
        assert y == nearest(big + size - 1, dtype)


def test_infinity_and_nan_spread(rank):
    x = mx.nd.array([np.inf if rank == 0 else 1, np.nan if rank == 0 else 1, 1])
    y = hvd.allreduce(x).asnumpy()
    assert np.isinf(y[0])
    assert np.isnan(y[1])
    assert y[2] == 1


@both_places
@pytest.mark.parametrize("dtype", DTYPES)
def test_0d_array(dtype, in_place, rank, size):
    with mx.util.np_shape(True):
        x = to_mx(np.array(rank % 2), dtype, mx.np)
        assert x.shape == ()
        y = reduce(x, in_place, op=hvd.Sum)
        assert y.shape == ()
        expected = size > 1 if dtype == "bool" else sum(r % 2 for r in range(size))
        assert to_numpy(y) == expected


def test_result_is_of_the_kind_of_the_input(rank, size):
    with mx.util.np_shape(True), mx.util.np_array(True):
        y = hvd.allreduce(mx.np.full((2, 2), rank), op=hvd.Sum)
        assert isinstance(y, mx.np.ndarray)
        np.testing.assert_array_equal(y.asnumpy(), size * (size - 1) / 2)
    y = hvd.allreduce(mx.nd.ones((2, 2)))
    assert isinstance(y, mx.nd.NDArray)
    assert not isinstance(y, mx.np.ndarray)


def test_many_dimensions(rank, size):
    x = mx.nd.ones((1, 2, 1, 2, 1, 2)) * rank
    y = hvd.allreduce(x, op=hvd.Sum)
    assert (y.asnumpy() == size * (size - 1) / 2).all()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_large(dtype, rank):
    """Several segments of each chunk, and lengths that no segment divides."""
    shape = (3_000_017,)
    x = to_mx(whole_numbers(dtype, shape, rank), dtype)
    y = hvd.allreduce(x, op=hvd.Sum)
    np.testing.assert_array_equal(y.asnumpy(), all_ranks(dtype, shape).sum(0))


def test_bool_can_not_be_averaged():
    x = mx.nd.ones((2,), dtype="bool")
    with pytest.raises(ValueError, match="'allreduce.flags' is bool, which can't be averaged"):
        hvd.allreduce(x, name="flags")
    with pytest.raises(ValueError, match="can't be averaged or scaled"):
        hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0)
