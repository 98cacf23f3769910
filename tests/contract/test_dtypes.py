"""Collectives give right values of the right dtype, for each dtype of the core and the library."""

import numpy as np
import pytest
from libraries import imported, mx, tf, torch

import hvdlite
import hvdlite.numpy
from hvdlite.core.collectives import DTYPE_CODES

keras, ml_dtypes = imported("keras"), imported("tensorflow") and __import__("ml_dtypes")


class NumPy:
    hvd, lacks = hvdlite.numpy, () if ml_dtypes else ("bfloat16",)
    make = staticmethod(lambda values, dtype: values.astype(dtype))
    read = staticmethod(lambda x: (x.dtype.name, x.astype("float64")))
    shared = staticmethod(lambda x, root: hvdlite.numpy.broadcast(x, root))


class OfTorch(NumPy):
    hvd, lacks = torch and __import__("hvdlite.torch").torch, ()
    make = staticmethod(lambda values, dtype: torch.tensor(values).to(getattr(torch, dtype)))
    read = staticmethod(lambda x: (str(x.dtype)[len("torch.") :], x.double().numpy()))

    @staticmethod
    def shared(x, root):
        hvdlite.torch.broadcast_parameters({"w": x}, root)
        return x


class OfTensorFlow(NumPy):
    hvd, lacks = tf and __import__("hvdlite.tensorflow").tensorflow, ()
    make = staticmethod(lambda values, dtype: tf.cast(values, dtype))
    read = staticmethod(lambda x: (x.dtype.name, tf.cast(x, "float64").numpy()))

    @staticmethod
    def shared(x, root):
        variable = tf.Variable(x)
        hvdlite.tensorflow.broadcast_variables([variable], root)
        return tf.convert_to_tensor(variable)


class OfKeras(NumPy):
    hvd, lacks = keras and __import__("hvdlite.keras").keras, ()
    make = staticmethod(lambda values, dtype: keras.ops.cast(values, dtype))

    @staticmethod
    def read(x):
        return keras.backend.standardize_dtype(x.dtype), np.asarray(keras.ops.cast(x, "float64"))

    @staticmethod
    def shared(x, root):
        dtype = keras.backend.standardize_dtype(x.dtype)
        variable = keras.Variable(x, dtype=dtype, trainable=False)
        hvdlite.keras.broadcast_variables([variable], root)
        return variable.value


class OfMXNet(NumPy):
    hvd, lacks = hvdlite, ("int16", "uint16", "uint32", "uint64")

    @staticmethod
    def make(values, dtype):
        narrow = np.dtype([("bfloat16", np.uint16)])
        return mx.nd.array(values).astype(narrow if dtype == "bfloat16" else dtype)

    @staticmethod
    def read(x):
        return np.dtype(x.dtype).names or np.dtype(x.dtype).name, x.astype("float64").asnumpy()

    @staticmethod
    def shared(x, root):
        hvdlite.broadcast_parameters({"w": x}, root)
        return x


KINDS = [NumPy]
KINDS += [OfTorch] if torch else []
KINDS += [OfTensorFlow] if tf else []
KINDS += [OfKeras] if keras else []
KINDS += [OfMXNet] if mx else []
each = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


@each
@pytest.mark.parametrize("dtype", DTYPE_CODES)
def test_collectives_of_every_dtype_give_right_values_and_dtypes(kind, dtype, rank, size):
    if dtype in kind.lacks:
        pytest.skip("the library has no such dtype")
    everyone = [np.array([r % 2, 1, 0]) for r in range(size)]
    total = (np.max if dtype == "bool" else np.sum)(everyone, axis=0)
    expected = {
        "allreduce": total,
        "allgather": np.concatenate(everyone),
        "broadcast": everyone[-1],
        "shared": everyone[-1],
    }
    calls = {
        "allreduce": lambda x: kind.hvd.allreduce(x, op=hvdlite.Sum),
        "allgather": kind.hvd.allgather,
        "broadcast": lambda x: kind.hvd.broadcast(x, size - 1),
        "shared": lambda x: kind.shared(x, size - 1),
    }
    for verb, call in calls.items():
        x = kind.make(everyone[rank], dtype)
        of, got = kind.read(call(x))
        assert (of, got.tolist()) == (kind.read(x)[0], expected[verb].tolist()), verb


@each
def test_ranks_with_signed_and_unsigned_dtypes_get_an_error(kind, rank, several):
    """TensorFlow and Keras must not move unsigned integers as signed integers of the same bits."""
    if "uint32" in kind.lacks:
        pytest.skip("the library has no such dtype")
    x = kind.make(np.array([1, 2]), "int32" if rank else "uint32")
    for call in (kind.hvd.broadcast, kind.shared):
        with pytest.raises(hvdlite.HvdliteError, match="uint32.*int32"):
            call(x, 0)
