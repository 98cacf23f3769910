"""Arrays of MXNet and NumPy, of every dtype, and back."""

import mxnet as mx
import numpy as np
import pytest

import hvdlite as hvd
import hvdlite.numpy

BFLOAT16 = np.dtype([("bfloat16", np.uint16)])  # as MXNet 1.9.1 has it
FLOATS = ("float16", "bfloat16", "float32", "float64")
EPSILON = {"float16": 2**-10, "bfloat16": 2**-7, "float32": 2**-22, "float64": 2**-51}


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
