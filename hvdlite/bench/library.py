"""The libraries under test: one small class each, with the calls of a user's script.

A library makes and fills arrays, starts a collective on an array, and waits for several
collectives; libraries for MXNet also make trainers. ``benchmarks/libraries.py`` has the classes of
the other systems.
"""

from functools import partial
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

import numpy as np

from hvdlite.bench import models
from hvdlite.bench.cases import KINDS, OPTIMIZERS, Case, numpy_dtype


class NumPyArrays:
    """Calls functions with hvdlite's names on NumPy arrays; each call waits for its result."""

    def __init__(
        self, hvd, label: str, algorithm: Callable[[], Optional[str]] = lambda: None
    ) -> None:
        self.hvd, self.label = hvd, label
        self.algorithm = algorithm  # returns the name of the last algorithm, or None

    def takes(self, case: Case) -> bool:
        """Tell whether the library can do the case."""
        private = case.memory == "private" and not numpy_dtype(case.dtype).fields
        return private and case.kind in KINDS and hasattr(self.hvd, case.kind)

    def make(self, shape, dtype: str) -> Any:
        return np.zeros(shape, dtype)

    def fill(self, array, value: float) -> None:
        array[...] = value

    def wait_filled(self) -> None:
        """Wait until all arrays are filled."""

    def starter(self, kind: str) -> Callable:
        """Return a function of an array, name and priority that starts a collective."""
        call, details = KINDS[kind].call(self.hvd)
        return lambda array, name, priority: call(array, name=name, **details)

    def finish(self, started: Sequence) -> List[np.ndarray]:
        return list(started)

    def to_numpy(self, array) -> np.ndarray:
        return array


class MXNetArrays(NumPyArrays):
    """Calls a module that has Horovod's names for MXNet arrays."""

    def takes(self, case: Case) -> bool:
        needs = {"zero-copy": "share_gradients", "sharded": "ShardedTrainer"}
        if case.memory in needs:
            return hasattr(self.hvd, needs[case.memory])
        return case.kind not in KINDS or hasattr(self.hvd, case.kind)

    def make(self, shape, dtype: str):
        import mxnet as mx

        return mx.nd.zeros(shape).astype(numpy_dtype(dtype), copy=False)

    def fill(self, array, value: float) -> None:
        array[:] = value

    def wait_filled(self) -> None:
        import mxnet as mx

        mx.nd.waitall()

    def starter(self, kind: str) -> Callable:
        call, details = KINDS[kind].call(self.hvd)
        if "op" not in details:
            return partial(call, **details)
        op = details["op"]  # functools.partial would add a quarter to the time of a small call
        return lambda array, name, priority: call(array, name=name, priority=priority, op=op)

    def finish(self, started: Sequence) -> List:
        if len(started) == 1:
            started[0].wait_to_read()
        else:
            self.wait_filled()
        return list(started)

    def to_numpy(self, array) -> np.ndarray:
        return (array if array.dtype in _NUMPY_TYPES else array.astype("float32")).asnumpy()

    def trainer(self, params, case: Case):
        """Return a trainer whose ``allreduce_grads()`` makes the gradients equal on all ranks."""
        optimizer = OPTIMIZERS[case.optimizer]
        arguments = {"optimizer": optimizer.name, "optimizer_params": dict(optimizer.params)}
        shares = case.memory in ("zero-copy", "sharded")
        self.shared = len(self.hvd.share_gradients(params.values())) if shares else 0
        if case.memory == "sharded":
            return self.hvd.ShardedTrainer(params, prefix=case.name, **arguments)
        reduces = case.kind != "update" and hasattr(self.hvd, "share_gradients")
        private = {"zero_copy": False} if reduces else {}
        return self.hvd.DistributedTrainer(params, prefix=case.name, **arguments, **private)

    def updating(self, case: Case):
        """Return an object that writes gradients and updates weights, as :class:`Updating`."""
        return Updating(self, case)

    synchronizes = True  # True: its trainers keep weights equal on all ranks
    idles = False  # True: the library uses no core while it has no work
    shared = 0  # number of the last trainer's gradients that lie in shared memory


class HvdliteArrays(MXNetArrays):
    """hvdlite itself, after ``init()``."""

    idles = True


class Alone(MXNetArrays):
    """Training without a library: the processes exchange nothing."""

    synchronizes = False

    def __init__(self) -> None:
        super().__init__(None, "alone")

    def takes(self, case: Case) -> bool:
        return case.kind == "step" and case.memory == "trainer"

    def trainer(self, params, case: Case):
        import mxnet as mx

        return mx.gluon.Trainer(params, "sgd", {"learning_rate": 0.01}, kvstore=None)


def gluon_parameters(case: Case) -> Dict[str, Any]:
    import mxnet as mx

    models.arrays_of_gluon()
    names = [f"p{i:03}_weight" for i in range(len(case.shapes))]
    params = {
        name: mx.gluon.Parameter(name, shape=shape, init="zeros")
        for name, shape in zip(names, case.shapes)
    }
    for param in params.values():
        param.initialize()
    return params


class Updating:
    """Weights of a gluon trainer, which start as zeros."""

    def __init__(self, library: MXNetArrays, case: Case) -> None:
        self.library = library
        self.params = gluon_parameters(case)
        self.trainer = library.trainer(self.params, case)

    def write(self, value: float) -> None:
        """Write gradients, as backward does."""
        for param in self.params.values():
            self.library.fill(param.grad(), value)
            param.data()._fresh_grad = True
        self.library.wait_filled()

    def step(self) -> None:
        """Average and update; return when the weights are new."""
        self.trainer.step(1)
        self.library.wait_filled()

    def weights(self) -> Iterator[np.ndarray]:
        return (param.data().asnumpy() for param in self.params.values())


def last_algorithm() -> Optional[str]:
    """Return the name of the last algorithm that hvdlite's core ran among all ranks."""
    from hvdlite.core.native import ffi, lib

    name = lib.hvd_algorithm()
    return None if name == ffi.NULL else ffi.string(name).decode()


_NUMPY_TYPES = [np.dtype(t) for t in ("f2", "f4", "f8", "u1", "i1", "i4", "i8")]
