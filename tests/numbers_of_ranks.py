"""Test data that each rank can compute for all ranks, and expected results of reductions."""

import functools
import hashlib

import numpy as np

import hvdlite as hvd
from hvdlite.core import reduce_ops
from hvdlite.core.shared_memory import own_host

# Shapes without elements, with one element, with an odd number of elements, with many dimensions,
# and one that is so large that the algorithm changes.
SHAPES = ((), (1,), (3, 0, 2), (0,), (3, 5, 7), (17,), (70_001,), (1, 2, 1, 2, 1, 2))
MODEL = {"Sum": np.sum, "Average": np.sum, "Min": np.min, "Max": np.max, "Product": np.prod}
assert {*MODEL, "Adasum"} == {*reduce_ops.VALUES}, "a reduce op has no model here"
EPSILON = {"float16": 2**-10, "bfloat16": 2**-7, "float32": 2**-22, "float64": 2**-51}


def host_dtype(dtype: str) -> str:
    """Return the NumPy dtype that holds values of this dtype."""
    return "float32" if dtype == "bfloat16" else dtype


def kept(function):
    """Cache the function's results for all libraries, as read-only arrays."""

    @functools.lru_cache(maxsize=256)
    def made(*arguments):
        result = np.asarray(function(*arguments))
        result.flags.writeable = False
        return result

    return made


@kept
def numbers(dtype: str, shape, rank: int) -> np.ndarray:
    """Return small whole numbers; every dtype holds them and their sums over ranks exactly."""
    random = np.random.RandomState(1000 * rank + int(np.prod(shape)) % 997)
    low, high = (0, 2) if dtype == "bool" else (0 if dtype.startswith("uint") else -8, 9)
    return np.asarray(random.randint(low, high, shape or None)).astype(host_dtype(dtype))


@kept
def model(dtype: str, shape, op: str, before=1.0, after=1.0) -> np.ndarray:
    """Return the expected result of a reduction; scaled or averaged integers are truncated."""
    everyone = np.stack([numbers(dtype, shape, r) for r in range(hvd.size())])
    if dtype == "bool":
        return (np.any if op in ("Sum", "Max") else np.all)(everyone, axis=0)
    whole = everyone.dtype.kind in "iu"
    wide = everyone.astype("int64" if whole else "float64")
    scaled = np.trunc(wide * before) if whole else wide * before
    result = MODEL[op](scaled, axis=0) * (after / (hvd.size() if op == "Average" else 1))
    with np.errstate(over="ignore"):  # products may overflow float16
        return (np.trunc(result).astype("int64") if whole else result).astype(host_dtype(dtype))


def adasum_of_two(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Combine two vectors by the rule of Maleki et al. (2020), section 3."""
    dot, aa, bb = (a * b).sum(), (a * a).sum(), (b * b).sum()
    return (1 - dot / (2 * aa) if aa else 1) * a + (1 - dot / (2 * bb) if bb else 1) * b


def adasum(vectors) -> np.ndarray:
    """Return the Adasum of the ranks' vectors, sorted by host.

    First, pairs at the beginning are combined until the number of vectors is a power of two.
    """
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


def part_of(rows: int, rank: int, size: int) -> slice:
    """Return the rows that a rank gets from a reducescatter."""
    each, longer = divmod(rows, size)
    first = rank * each + min(rank, longer)
    return slice(first, first + each + (rank < longer))


def same_everywhere(array) -> bool:
    """Return whether all ranks have the same bits."""
    bits = hashlib.sha1(np.asarray(array).tobytes()).digest()
    return len(set(hvd.allgather_object(bits))) == 1


def close(got, expected, dtype: str, note="") -> None:
    """Assert that `got` has this dtype, the shape of `expected`, and its values up to rounding."""
    got = np.asarray(got)
    assert got.dtype == host_dtype(dtype) and got.shape == np.shape(expected)
    # comparing bytes takes a tenth of the time of assert_allclose
    if got.tobytes() != np.asarray(expected).tobytes():
        np.testing.assert_allclose(got, expected, EPSILON.get(dtype, 0), 0, err_msg=str(note))


def check(got, expected, dtype: str, note="") -> None:
    close(got, expected, dtype, note)
    assert same_everywhere(got), "ranks have different bits"


NORM_EPSILON = 1e-5  # epsilon of the batch normalization


def check_far_from_zero(normalize) -> None:
    """Check ``normalize(x, dy)``, which returns y and dx for this rank's (rows, 8, 8, channels).

    The mean is 1000 standard deviations; ranks have different means and numbers of rows; the last
    channel is constant.
    """
    randoms = [np.random.RandomState(r) for r in range(hvd.size())]
    parts = [1000 + r / 2 + random.randn(2 + 3 * r, 8, 8, 3) for r, random in enumerate(randoms)]
    parts = [part.astype(np.float32) for part in parts]
    for part in parts:
        part[..., -1] = 1000
    x = np.concatenate(parts)
    dy = np.random.RandomState(9).randn(*x.shape).astype(np.float32)
    own = np.repeat(np.arange(hvd.size()), [len(part) for part in parts]) == hvd.rank()
    for got, expected in zip(normalize(x[own], dy[own]), _normalized_in_float64(x, dy)):
        difference = np.abs(got - expected[own]).max((0, 1, 2))
        assert (difference[:2] <= 1e-3).all(), difference
        assert np.isfinite(difference).all(), difference


def _normalized_in_float64(x, dy) -> tuple:
    x, axes = x.astype(np.float64), (0, 1, 2)
    scale = 1 / np.sqrt(x.var(axes) + NORM_EPSILON)
    y = (x - x.mean(axes)) * scale
    return y, scale * (dy - dy.mean(axes) - y * (y * dy).mean(axes))
