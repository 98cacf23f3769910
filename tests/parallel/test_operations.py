"""Min, Max, Product and Adasum, on MXNet and NumPy arrays, against plain NumPy."""

import mxnet as mx
import numpy as np
import pytest
from arrays import (
    DTYPES,
    EPSILON,
    FLOATS,
    INTEGERS,
    SHAPES,
    MXNet,
    NumPy,
    all_ranks,
    both_libraries,
    same_everywhere,
    to_mx,
    to_numpy,
    toward_zero,
    whole_numbers,
)

import hvdlite as hvd
from hvdlite.core.shared_memory import own_host

NUMPY_OF = {"Min": np.min, "Max": np.max, "Product": np.prod}
cases = [(m, d) for m in (MXNet, NumPy) for d in DTYPES if (m, d) != (NumPy, "bfloat16")]
every_dtype = pytest.mark.parametrize(
    "library, dtype", cases, ids=[f"{m.__name__}-{d}" for m, d in cases]
)


@every_dtype
@pytest.mark.parametrize("op", NUMPY_OF)
def test_equals_numpys(library, dtype, op, rank):
    for shape in SHAPES:
        x = library.make(whole_numbers(dtype, shape, rank), dtype)
        y = library.collectives.allreduce(x, op=getattr(hvd, op))
        assert y.dtype == x.dtype
        expected = NUMPY_OF[op](all_ranks(dtype, shape), axis=0)
        if dtype in (*INTEGERS, "float16"):  # products wrap, or are infinite
            with np.errstate(over="ignore"):
                expected = expected.astype(dtype)
        got = library.read(y)
        np.testing.assert_allclose(got, expected, EPSILON.get(dtype, 0), 0, err_msg=str(shape))
        assert same_everywhere(got)


@pytest.mark.parametrize("op", ["Min", "Max"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_wins(dtype, op, rank, size):
    """On whichever rank it is, in short data and in long."""
    for n in (3, 40_001):
        values = np.full(n, rank + 1.0, "float32")
        values[rank % n] = np.nan
        values[-1] = np.inf if rank == 0 else 1
        y = to_numpy(hvd.allreduce(to_mx(values, dtype), op=getattr(hvd, op)))
        assert np.isnan(y[: min(size, n - 1)]).all()
        if n > size:
            assert y[-1] == (np.inf if op == "Max" or size == 1 else 1)
        assert same_everywhere(y)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_products_wrap_as_numpys(dtype, size):
    limits = np.iinfo(dtype)
    x = np.array([limits.max, limits.min, 3, 100], dtype)
    with np.errstate(over="ignore"):
        expected = np.prod(np.stack([x] * size), axis=0, dtype=dtype)
    np.testing.assert_array_equal(hvd.numpy.allreduce(x, op=hvd.Product), expected)


@both_libraries
@pytest.mark.parametrize("dtype", ["float16", "float64", "int32", "uint8"])
def test_scales_of_each_operation(library, dtype, rank):
    everyone = all_ranks(dtype, (19,))
    x = library.make(whole_numbers(dtype, (19,), rank), dtype)
    for op, numpy_op in NUMPY_OF.items():
        y = library.collectives.allreduce(
            x, op=getattr(hvd, op), prescale_factor=2, postscale_factor=0.5
        )
        expected = numpy_op(everyone * 2, axis=0) * 0.5
        if dtype in INTEGERS:
            expected = toward_zero(numpy_op(everyone * 2, axis=0), 2)
        if dtype == "uint8":
            expected = expected % 256
        if dtype == "float16":  # products may be infinite
            with np.errstate(over="ignore"):
                expected = expected.astype(dtype)
        np.testing.assert_allclose(library.read(y), expected, EPSILON.get(dtype, 0))


def test_bool(rank, size):
    x = np.array([True, False, rank == 0, rank != 0])
    both = [True, False, size == 1, False]
    either = [True, False, True, size > 1]
    for op, expected in (("Min", both), ("Product", both), ("Max", either), ("Sum", either)):
        y = hvd.numpy.allreduce(x, op=getattr(hvd, op))
        assert y.tolist() == expected, op


def test_unknown_operations_are_refused():
    for op in (-1, 6, "Sum", 2.5):
        with pytest.raises(ValueError, match="hvdlite.Min, hvdlite.Max, hvdlite.Product"):
            hvd.allreduce(mx.nd.ones(2), op=op)


# ---- Adasum ----


def adasum_of_two(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The rule of Maleki et al. (2020), section 3."""
    dot, aa, bb = (a * b).sum(), (a * a).sum(), (b * b).sum()
    return (1 - dot / (2 * aa) if aa else 1) * a + (1 - dot / (2 * bb) if bb else 1) * b


def adasum(vectors) -> np.ndarray:
    """Host by host: pairs beyond a power of two first, then neighbours, and neighbours of those."""
    hosts = hvd.allgather_object(own_host().number)
    ranks = sorted(range(len(vectors)), key=lambda rank: hosts[rank])
    vectors = [np.asarray(vectors[rank], np.float64) for rank in ranks]
    places = 1 << (len(vectors).bit_length() - 1)
    extra = len(vectors) - places
    first = [adasum_of_two(*vectors[2 * i : 2 * i + 2]) for i in range(extra)]
    vectors = first + vectors[2 * extra :]
    while len(vectors) > 1:
        vectors = [adasum_of_two(*vectors[i : i + 2]) for i in range(0, len(vectors), 2)]
    return vectors[0]


def reals(dtype: str, shape, rank: int) -> np.ndarray:
    values = np.random.RandomState(rank + 7).randn(*shape)
    return to_numpy(to_mx(values, dtype)) if dtype == "bfloat16" else values.astype(dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("library", [MXNet, NumPy], ids=["mxnet", "numpy"])
def test_adasum_equals_the_model(library, dtype, rank, size):
    if library is NumPy and dtype == "bfloat16":
        pytest.skip("NumPy has no bfloat16")
    for shape in ((1,), (17,), (3, 5, 7), (70_001,)):
        x = library.make(reals(dtype, shape, rank), dtype)
        y = library.read(library.collectives.allreduce(x, op=hvd.Adasum))
        expected = adasum([reals(dtype, shape, r) for r in range(size)])
        np.testing.assert_allclose(y, expected, 4 * EPSILON[dtype], 8 * EPSILON[dtype])
        assert same_everywhere(y)


def test_adasum_averages_what_is_parallel_and_adds_what_is_orthogonal(rank, size):
    same = hvd.allreduce(mx.nd.array([1.0, -2.0, 3.0]), op=hvd.Adasum).asnumpy()
    np.testing.assert_allclose(same, [1, -2, 3], rtol=1e-6)
    own = np.zeros(size)
    own[rank] = rank + 1
    y = hvd.numpy.allreduce(own, op=hvd.Adasum)
    np.testing.assert_allclose(y, np.arange(size) + 1)


def test_adasum_of_zeros(rank, size):
    x = np.full(5, 2.0) if rank == size - 1 else np.zeros(5)
    np.testing.assert_allclose(hvd.numpy.allreduce(x, op=hvd.Adasum), 2)
    assert (hvd.numpy.allreduce(np.zeros(5), op=hvd.Adasum) == 0).all()


def test_adasum_is_of_each_tensor_alone(rank, size):
    """Fused they would be one long vector."""
    vectors = [[reals("float32", (9,), r + 10 * i) for r in range(size)] for i in range(30)]
    results = hvd.grouped_allreduce([mx.nd.array(v[rank]) for v in vectors], op=hvd.Adasum)
    for y, v in zip(results, vectors):
        np.testing.assert_allclose(y.asnumpy(), adasum(v), 1e-5, 1e-5)


def test_adasum_in_place_with_scales(rank, size):
    x = mx.nd.array(reals("float32", (100,), rank))
    hvd.allreduce_(x, op=hvd.Adasum, prescale_factor=0.5, postscale_factor=3)
    expected = 3 * adasum([0.5 * reals("float32", (100,), r) for r in range(size)])
    np.testing.assert_allclose(x.asnumpy(), expected, 1e-5, 1e-5)


@both_libraries
def test_adasum_is_for_floats(library):
    for dtype in ("int32", "uint8", "bool"):
        with pytest.raises(ValueError, match="'allreduce.x' is .*floating-point dtype for op=Ada"):
            library.collectives.allreduce(library.make([1, 0], dtype), op=hvd.Adasum, name="x")
    with pytest.raises(ValueError, match="op=Adasum is only for an allreduce, not for reducescat"):
        library.collectives.reducescatter(library.make([1.0, 0.0], "float32"), op=hvd.Adasum)
