"""Min, Max, Product and Adasum, on MXNet and NumPy arrays, against plain NumPy."""

import mxnet as mx
import numpy as np
from libraries import FLOATS, every_dtype_of
from numbers_of_ranks import EPSILON, host_dtype, same_everywhere

import hvdlite as hvd
from hvdlite.core.shared_memory import own_host

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
    return np.random.RandomState(rank + 7).randn(*shape).astype(host_dtype(dtype))


@every_dtype_of(FLOATS)
def test_adasum_equals_the_model(lib, dtype, rank, size):
    for shape in ((1,), (17,), (3, 5, 7), (70_001,)):
        everyone = [lib.read(lib.make(reals(dtype, shape, r), dtype)) for r in range(size)]
        y = lib.call("allreduce", everyone[rank], dtype=dtype, op=hvd.Adasum)
        expected = adasum(everyone)
        np.testing.assert_allclose(y, expected, 4 * EPSILON[dtype], 8 * EPSILON[dtype])
        assert same_everywhere(y)


def test_adasum_is_of_each_tensor_alone(rank, size):
    """Fused they would be one long vector."""
    vectors = [[reals("float32", (9,), r + 10 * i) for r in range(size)] for i in range(30)]
    results = hvd.grouped_allreduce([mx.nd.array(v[rank]) for v in vectors], op=hvd.Adasum)
    for y, v in zip(results, vectors):
        np.testing.assert_allclose(y.asnumpy(), adasum(v), 1e-5, 1e-5)
