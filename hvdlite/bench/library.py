"""What is measured through: one small class a library, with the calls of a user's script.

A library makes arrays, fills them, starts a collective on one and waits for several; those for
MXNet make trainers too. ``benchmarks/libraries.py`` has those of the other systems.
"""

from typing import Any, List, Optional, Sequence

import numpy as np

from hvdlite.bench.cases import KINDS, Case


class NumPyArrays:
    """A module with hvdlite's names on NumPy arrays; each call waits until the work is done."""

    def __init__(self, hvd, label: str) -> None:
        self.hvd, self.label = hvd, label

    def takes(self, case: Case) -> bool:
        return case.memory == "private" and case.kind in KINDS and case.dtype != "bfloat16"

    def make(self, shape, dtype: str) -> Any:
        return np.zeros(shape, dtype)

    def fill(self, array, value: float) -> None:
        array[...] = value

    def settle(self) -> None:
        """Wait until all arrays are filled."""

    def start(self, kind: str, array, name: str, priority: int) -> Any:
        return KINDS[kind].start(self.hvd, array, name=name)

    def finish(self, started: Sequence) -> List[np.ndarray]:
        """Wait for what was started; return the results."""
        return list(started)

    def to_numpy(self, array) -> np.ndarray:
        return array

    def algorithm(self) -> Optional[str]:
        """Return the name of the algorithm that ran last, where the library tells."""
        return None


class MXNetArrays(NumPyArrays):
    """A module with Horovod's names on MXNet arrays."""

    def takes(self, case: Case) -> bool:
        if case.memory == "zero-copy":
            return hasattr(self.hvd, "share_gradients")
        return case.kind not in KINDS or hasattr(self.hvd, case.kind)

    def make(self, shape, dtype: str):
        import mxnet as mx

        if dtype == "bfloat16":
            dtype = np.dtype([("bfloat16", np.uint16)])  # as MXNet has it
            return mx.nd.zeros(shape).astype(dtype)
        return mx.nd.zeros(shape, dtype=dtype)

    def fill(self, array, value: float) -> None:
        array[:] = value

    def settle(self) -> None:
        import mxnet as mx

        mx.nd.waitall()

    def start(self, kind: str, array, name: str, priority: int):
        return KINDS[kind].start(self.hvd, array, name=name, priority=priority)

    def finish(self, started: Sequence) -> List:
        if len(started) == 1:
            started[0].wait_to_read()
        else:
            self.settle()
        return list(started)

    def to_numpy(self, array) -> np.ndarray:
        return (array if array.dtype in _NUMPY_TYPES else array.astype("float32")).asnumpy()

    def trainer(self, params, zero_copy: bool, name: str):
        """Return a trainer whose ``allreduce_grads()`` makes the gradients equal on all ranks."""
        if zero_copy:
            moved = self.hvd.share_gradients(params.values())
            if not moved:
                raise RuntimeError("no gradient could be moved into shared memory")
        return self.hvd.DistributedTrainer(params, "sgd", {"learning_rate": 0.01}, prefix=name)

    synchronises = True  # its trainers keep weights equal on all ranks


_NUMPY_TYPES = [np.dtype(t) for t in ("f2", "f4", "f8", "u1", "i1", "i4", "i8")]
