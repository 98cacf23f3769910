"""The cases of the bench: a kind of collective, on arrays of given shapes, dtype and memory."""

import math
import re
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np

from hvdlite.bench import models

TINY_ARRAYS, TINY_ELEMENTS = 500, 16  # as many small gradients as a deep network has biases


class Kind(NamedTuple):
    """One kind of collective, for p ranks. S is the larger of the bytes of the input and result.

    :ivar call: takes a library's module; returns the collective (a function of an array and
        keywords) and the keywords for every call.
    :ivar gives: the bytes of one rank's input, divided by S.
    :ivar wire: the least bytes that a rank sends and receives, divided by S: busbw / algbw.
    :ivar traffic: the least bytes that all ranks read and write in memory, divided by S.
    :ivar result: the value of each equal part of the result, if rank r's input is full of r + 1.
    """

    call: Callable[[Any], Tuple[Callable, Dict[str, Any]]]
    gives: Callable[[int], float]
    wire: Callable[[int], float]
    traffic: Callable[[int], float]
    result: Callable[[int], List[float]]


def _total(p: int) -> float:
    return p * (p + 1) / 2


def _in_place(module, name: str) -> Callable:
    return getattr(module, f"{name}_", None) or getattr(module, name)


KINDS = {
    "allreduce": Kind(
        call=lambda hvd: (_in_place(hvd, "allreduce"), {"op": hvd.Sum}),
        gives=lambda p: 1,
        wire=lambda p: 2 * (p - 1) / p,
        traffic=lambda p: 2 * p,
        result=lambda p: [_total(p)],
    ),
    "broadcast": Kind(
        call=lambda hvd: (_in_place(hvd, "broadcast"), {"root_rank": 0}),
        gives=lambda p: 1,
        wire=lambda p: 1,
        traffic=lambda p: p,
        result=lambda p: [1],
    ),
    "allgather": Kind(
        call=lambda hvd: (hvd.allgather, {}),
        gives=lambda p: 1 / p,
        wire=lambda p: (p - 1) / p,
        traffic=lambda p: 1 + p,
        result=lambda p: list(range(1, p + 1)),
    ),
    "reducescatter": Kind(
        call=lambda hvd: (hvd.reducescatter, {"op": hvd.Sum}),
        gives=lambda p: 1,
        wire=lambda p: (p - 1) / p,
        traffic=lambda p: p + 1,
        result=lambda p: [_total(p)],
    ),
    "alltoall": Kind(
        call=lambda hvd: (hvd.alltoall, {}),
        gives=lambda p: 1,
        wire=lambda p: (p - 1) / p,
        traffic=lambda p: 2 * p,
        result=lambda p: list(range(1, p + 1)),
    ),
}


class Optimizer(NamedTuple):
    """An optimizer; ``states`` is the number of values that it keeps for each weight."""

    name: str
    params: Dict[str, Any]
    states: int

    def traffic(self, p: int) -> float:
        """Return the fewest bytes moved, per byte of weights, to sum p gradients and update."""
        return p + 2 + 2 * self.states

    def weight(self, gradient: float, steps: int) -> float:
        """Return the value of a weight that was 0, after ``steps`` steps with equal gradients."""
        rate, momentum = self.params["learning_rate"], self.params.get("momentum", 0)
        # with equal gradients, Adam's running means are the gradient and its square
        if self.name == "adam":
            return -rate * steps * math.copysign(1, gradient)
        weight = velocity = 0.0
        for _ in range(steps):
            velocity = momentum * velocity - rate * gradient
            weight += velocity
        return weight


OPTIMIZERS = {
    "sgd": Optimizer("sgd", {"learning_rate": 0.01}, 0),
    "momentum": Optimizer("sgd", {"learning_rate": 0.01, "momentum": 0.9}, 1),
    "adam": Optimizer("adam", {"learning_rate": 0.001}, 2),
}


class Case(NamedTuple):
    """One line of the table.

    :ivar kind: a key of KINDS; "update": average gradients and update weights; "step": one step
        of training.
    :ivar memory: "private": the caller's arrays; "trainer": gradients, by ``allreduce_grads()``;
        "zero-copy": gradients after ``share_gradients``; "sharded": a ``ShardedTrainer``. For the
        kind "update", "trainer" means a ``DistributedTrainer`` with its defaults.
    :ivar label: the size in bytes, or the name of the set of arrays.
    :ivar shapes: the shapes of one rank's arrays; S is the total size of these arrays.
    :ivar optimizer: a key of OPTIMIZERS.
    """

    kind: str
    memory: str
    dtype: str
    label: str
    shapes: Tuple[Tuple[int, ...], ...]
    optimizer: str = "sgd"

    @property
    def name(self) -> str:
        kind = f"update.{self.optimizer}" if self.kind == "update" else self.kind
        return f"{kind}.{self.memory}.{self.dtype}.{self.label}"

    @property
    def nbytes(self) -> int:
        return numpy_dtype(self.dtype).itemsize * sum(int(np.prod(shape)) for shape in self.shapes)


def numpy_dtype(name: str) -> np.dtype:
    # MXNet's bfloat16 is a dtype with a field of this name
    return np.dtype([(name, np.uint16)] if name == "bfloat16" else name)


def one_array(kind: str, nbytes: int, dtype: str = "float32", memory: str = "private") -> Case:
    return Case(kind, memory, dtype, str(nbytes), ((nbytes // numpy_dtype(dtype).itemsize,),))


def model(name: str, memory: str = "private") -> Case:
    """Return the case of a model's gradients; private gradients are reduced one by one."""
    return Case("allreduce", memory, "float32", name, tuple(models.gradient_shapes(name)))


def update(name: str, memory: str, optimizer: str) -> Case:
    """Return the case that averages a model's finished gradients and updates its parameters."""
    return model(name, memory)._replace(kind="update", optimizer=optimizer)


def tiny(memory: str = "private") -> Case:
    label = f"{TINY_ARRAYS}x{TINY_ELEMENTS}"
    return Case("allreduce", memory, "float32", label, ((TINY_ELEMENTS,),) * TINY_ARRAYS)


def step(memory: str) -> Case:
    """Return the case of a training step of LeNet, with a batch of 64 on each rank."""
    return Case("step", memory, "float32", "lenet", tuple(models.gradient_shapes("lenet")))


_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def parse_size(text: str) -> int:
    """Return the number of bytes that the text means.

    >>> parse_size("4k"), parse_size("64M"), parse_size("400MB"), parse_size("0")
    (4096, 67108864, 400000000, 0)
    """
    match = re.fullmatch(r"(\d+)([KMG]?B?)", text.strip().upper())
    if not match or match.group(2) not in (*_UNITS, "B"):
        raise ValueError(
            f"size {text!r}: expected a number of bytes such as 4096, 4K, 64M or 400MB"
        )
    return int(match.group(1)) * _UNITS.get(match.group(2), 1)


def sweep(
    kinds: Sequence[str], sizes: Sequence[int], dtypes: Sequence[str], memory: str
) -> List[Case]:
    """Return a case for each combination; if ``memory`` is not private, only float32 allreduces."""
    if memory != "private":
        kinds = [kind for kind in kinds if kind == "allreduce" and memory != "sharded"]
        dtypes = [dtype for dtype in dtypes if dtype == "float32"]
    kinds = [kind for kind in kinds if kind in KINDS]
    return [one_array(k, size, d, memory) for k in kinds for d in dtypes for size in sizes]
