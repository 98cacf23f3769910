"""Adapters of each library for tests of collectives: they convert arrays from and to NumPy.

bfloat16, which NumPy lacks, is converted from and to float32.
"""

import importlib
import os

import numpy as np
import pytest

LIBRARIES = []
WANTED = os.environ.get("CONTRACT_OF", "numpy mxnet torch keras tensorflow").split()
FLOATS = ("float16", "bfloat16", "float32", "float64")


def library(cls):
    LIBRARIES.append(cls())
    return cls


def imported(name: str):
    """Return the module, or None if this run does not test it (WANTED) or it is not installed."""
    try:
        if name == "jax" and name in WANTED:
            importlib.import_module("hvdlite.jax")  # must be imported before jax
        return importlib.import_module(name) if name in WANTED else None
    except ImportError:
        return None


def first_of(result):
    """Return the tensors of a result as a list; leave out the row counts of an alltoall."""
    return result if isinstance(result, list) else [result[0] if type(result) is tuple else result]


class Library:
    dtypes: tuple = (
        *("float16", "float32", "float64", "bool", "int8", "int16", "int32", "int64"),
        *("uint8", "uint16", "uint32", "uint64"),
    )
    in_place = has_0d = True
    compiles = False  # True: TensorFlow compiles a call, and may refuse it before hvdlite does
    prepares = False  # True: Python describes and checks a repeated allreduce only once
    compresses = False  # True: a call takes compression=
    graphs = False  # True: each shape needs a new graph, which is slow, so there are fewer cases
    asks_for_rows = False  # True: an allgather_async() waits for the row counts of all ranks
    errors: tuple = ()

    def __str__(self) -> str:
        return type(self).__name__

    def call(self, verb: str, *arrays, dtype=None, **options):
        """Do one collective on NumPy arrays; return NumPy arrays.

        Check that inputs do not change, and that results have the type and dtype of the inputs.
        """
        made = [self.make(a, dtype) for a in arrays]
        grouped = verb.startswith("grouped")
        result = getattr(self.hvd, verb)(made if grouped else made[0], **options)
        for x, y, array in zip(made, first_of(result), arrays):
            assert type(y) is type(x) and y.dtype == x.dtype and y is not x
            assert self.read(x).tobytes() == np.asarray(array).tobytes()
        return self.read_all(result)

    def read_all(self, result):
        if isinstance(result, (list, tuple)):
            return [self.read(each) for each in result]
        return self.read(result)


class NumPy(Library):
    import hvdlite.numpy as hvd

    in_place, prepares = False, True
    make = staticmethod(np.array)
    read = staticmethod(np.asarray)
    gradient = None


if "numpy" in WANTED:
    library(NumPy)


mx = imported("mxnet")
if mx:
    import hvdlite

    BFLOAT16 = np.dtype([("bfloat16", np.uint16)])  # MXNet 1.9.1's dtype of bfloat16 in NumPy

    class MXNet(Library):
        hvd = hvdlite
        errors = (mx.MXNetError,)
        asks_for_rows = True

        def make(self, values, dtype=None):
            with mx.util.np_shape(True):
                array = self.module.array(values, dtype=values.dtype)
                return array.astype(BFLOAT16) if dtype == "bfloat16" else array

        def read(self, array):
            with mx.util.np_shape(True):
                narrow = array.dtype == BFLOAT16
                return (mx.nd.NDArray.astype(array, "float32") if narrow else array).asnumpy()

        def call(self, *arguments, **options):
            with mx.util.np_shape(True):
                return super().call(*arguments, **options)

        def gradient(self, verb, values, options, weight):
            with mx.util.np_shape(True):
                x = self.make(values)
                x.attach_grad()
                with mx.autograd.record():
                    y = getattr(self.hvd, verb)(
                        [x, 2 * x] if verb.startswith("grouped") else x, **options
                    )
                    assert all(type(out) is type(x) for out in first_of(y))
                    loss = sum((out * self.make(weight(out.shape))).sum() for out in first_of(y))
                loss.backward()
                return float(loss.asnumpy()), self.read(x.grad)

    @library
    class NDArray(MXNet):
        module, has_0d = mx.nd, False
        dtypes = (*FLOATS, "uint8", "int8", "int32", "int64", "bool")

    @library
    class NP(MXNet):
        """mx.np arrays. Few dtypes are enough: hvdlite handles MXNet's NDArrays in the same way."""

        module = mx.np
        dtypes = ("float16", "float32", "int64", "bool")


torch = imported("torch")
if torch:
    import hvdlite.torch

    @library
    class Torch(Library):
        hvd = hvdlite.torch
        dtypes = (*Library.dtypes, "bfloat16")
        prepares = compresses = True

        def make(self, values, dtype=None):
            tensor = torch.from_numpy(np.array(values))
            return tensor.bfloat16() if dtype == "bfloat16" else tensor

        def read(self, tensor):
            tensor = tensor.detach()
            return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()

        def gradient(self, verb, values, options, weight):
            x = self.make(values).requires_grad_()
            y = getattr(self.hvd, verb)([x, 2 * x] if verb.startswith("grouped") else x, **options)
            weights = [self.make(np.asarray(weight(tuple(out.shape)))) for out in first_of(y)]
            loss = sum((out * each).sum() for out, each in zip(first_of(y), weights))
            loss.backward()
            return loss.item(), self.read(x.grad)


jax = imported("jax")
if jax:
    import hvdlite.jax

    jax.config.update("jax_enable_x64", True)

    class OfTrees:
        """Add grouped forms: each verb of hvdlite.jax takes one array or a tree of arrays."""

        def __getattr__(self, verb):
            return getattr(hvdlite.jax, verb.replace("grouped_", ""))

    @library
    class JAX(Library):
        hvd, gradient = OfTrees(), None
        dtypes = (*Library.dtypes, "bfloat16")
        in_place = False

        def make(self, values, dtype=None):
            return jax.numpy.array(values, dtype)

        def read(self, array):
            return np.asarray(array.astype("float32") if array.dtype.name == "bfloat16" else array)


tf = imported("tensorflow")
if tf:
    import hvdlite.tensorflow

    class TensorFlow(Library):
        hvd = hvdlite.tensorflow
        in_place, compiles, compresses = False, True, True
        errors = (tf.errors.OpError,)
        make = staticmethod(lambda values, dtype=None: tf.constant(values))
        read = staticmethod(np.asarray)

        def call(self, verb, *arrays, dtype=None, **options):
            def run(*tensors):
                grouped = verb.startswith("grouped")
                return getattr(self.hvd, verb)(list(tensors) if grouped else tensors[0], **options)

            return self.read_all(self.how(run, arrays))

        def gradient(self, verb, values, options, weight):
            def run(x):
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    y = getattr(self.hvd, verb)(
                        [x, 2 * x] if verb.startswith("grouped") else x, **options
                    )
                    loss = sum(
                        tf.reduce_sum(out * tf.numpy_function(weight, [tf.shape(out)], out.dtype))
                        for out in first_of(y)
                    )
                return loss, tape.gradient(loss, x)

            loss, gradient = self.how(run, [values])
            return float(loss), self.read(gradient)

    @library
    class Eager(TensorFlow):
        @staticmethod
        def how(run, arrays):
            return run(*map(tf.constant, arrays))

    @library
    class InFunction(TensorFlow):
        dtypes, graphs = ("float16", "bool"), True

        @staticmethod
        def how(run, arrays):
            return tf.function(run)(*map(tf.constant, arrays))

    @library
    class InSession(TensorFlow):
        dtypes, graphs = ("float32", "int32", "uint16"), True

        @staticmethod
        def how(run, arrays):
            with tf.Graph().as_default():
                inputs = [
                    tf.compat.v1.placeholder(np.asarray(a).dtype, np.shape(a)) for a in arrays
                ]
                outputs = run(*inputs)
                with tf.compat.v1.Session() as session:
                    return session.run(outputs, dict(zip(inputs, arrays)))


def libraries_that(suit):
    """Return a parametrization of a test with each library for which suit(library) is true."""
    return pytest.mark.parametrize("lib", [lib for lib in LIBRARIES if suit(lib)], ids=str)


every_library = libraries_that(lambda lib: True)
differentiable = libraries_that(lambda lib: lib.gradient)
in_place = libraries_that(lambda lib: lib.in_place)
of_frameworks = libraries_that(lambda lib: not isinstance(lib, NumPy))


def every_dtype_of(dtypes=None):
    """Parametrize with each library and each of its dtypes; `dtypes` may limit the dtypes."""
    pairs = [
        (lib, dtype)
        for lib in LIBRARIES
        for dtype in lib.dtypes
        if dtypes is None or dtype in dtypes
    ]
    return pytest.mark.parametrize("lib, dtype", pairs, ids=str)
