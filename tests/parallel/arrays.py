"""Arrays whose sums are known: every rank can make those of every other rank."""

import mxnet as mx
import numpy as np
import pytest

import hvdlite as hvd
import hvdlite.numpy

BFLOAT16 = np.dtype([("bfloat16", np.uint16)])  # as MXNet 1.9.1 has it
FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("uint8", "int8", "int32", "int64")
DTYPES = (*FLOATS, *INTEGERS, "bool")
EPSILON = {"float16": 2**-10, "bfloat16": 2**-7, "float32": 2**-22, "float64": 2**-51}

# Zero-size, one element, odd, more than one dimension, past the threshold between algorithms.
SHAPES = ((0,), (1,), (17,), (3, 0, 2), (3, 5, 7), (70_001,))


def whole_numbers(dtype: str, shape, rank: int) -> np.ndarray:
    """Small whole numbers, exact in every dtype, and so are their sums over a few ranks."""
    random = np.random.RandomState(1000 * rank + int(np.prod(shape)) % 997)
    low = 0 if dtype in ("uint8", "bool") else -8
    values = random.randint(low, 2 if dtype == "bool" else 9, shape)
    return values.astype("float32" if dtype == "bfloat16" else dtype)


def all_ranks(dtype: str, shape) -> np.ndarray:
    """What the ranks have, stacked, in a dtype that sums it exactly."""
    wide = {"bool": "bool", "uint8": "int64", "int8": "int64"}.get(dtype)
    wide = wide or ("int64" if dtype in INTEGERS else "float64")
    return np.stack([whole_numbers(dtype, shape, r) for r in range(hvd.size())]).astype(wide)


def to_mx(values: np.ndarray, dtype: str, module=mx.nd):
    if dtype == "bfloat16":
        with mx.util.np_shape(True):  # else no operator takes arrays without elements
            return mx.nd.array(values, dtype="float32").astype(BFLOAT16)
    return module.array(values, dtype=dtype)


def to_numpy(array) -> np.ndarray:
    """Its values; bfloat16 as float32."""
    if array.dtype == BFLOAT16:
        with mx.util.np_shape(True):
            array = mx.nd.NDArray.astype(array, "float32")
    return array.asnumpy()


def same_everywhere(array: np.ndarray) -> bool:
    """Tell whether all ranks have the same bits."""
    return len(set(hvd.allgather_object(array.tobytes()))) == 1


def toward_zero(values: np.ndarray, divisor: int) -> np.ndarray:
    return np.sign(values) * (np.abs(values) // divisor)


class NumPy:
    """The collectives on NumPy arrays; :class:`MXNet` has those on MXNet's."""

    collectives = hvd.numpy
    make = staticmethod(lambda values, dtype: np.asarray(values, dtype))
    read = staticmethod(np.asarray)
    kind = np.ndarray


class MXNet:
    collectives = hvd
    make = staticmethod(to_mx)
    read = staticmethod(to_numpy)
    kind = mx.nd.NDArray


both_libraries = pytest.mark.parametrize("library", [MXNet, NumPy], ids=["mxnet", "numpy"])


def part_of(rows: int, rank: int, size: int) -> slice:
    """The rows of a reducescatter that a rank gets."""
    each, longer = divmod(rows, size)
    begin = rank * each + min(rank, longer)
    return slice(begin, begin + each + (rank < longer))
