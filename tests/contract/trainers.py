"""The interface of trainers that the tests of all trainers use; one_process.py has the network."""

import importlib

import numpy as np
from libraries import imported

import hvdlite

EVERY = (
    "op", "gradient_predivide_factor", "num_groups", "compression", "process_set",
    "backward_passes_per_step",
)  # fmt: skip


class Halved:
    """A compression written by a user, which must get each gradient in its original shape."""

    shapes: set = set()

    @classmethod
    def compress(cls, tensor):
        cls.shapes.add(tuple(tensor.shape))
        return tensor / 2, "context"

    @staticmethod
    def decompress(tensor, context):
        assert context == "context"
        return tensor * 2


class Trainer:
    hvd = hvdlite
    takes: tuple = EVERY  # options that the trainer takes
    # True: a script can freeze, unfreeze or skip layers between steps
    freezes = thaws = skips_layers = True
    # True: each step waits for other ranks, so all ranks must use several trainers in one order
    waits = True
    sums_passes = False  # True: gradients of several passes are added; False: averaged
    scales_loss = True  # True: a step in which a rank's gradients overflow can be skipped
    joins = False  # True: ranks may have different numbers of batches
    saves = False  # True: saved(), load(), committed() and begin() (a step's first pass) exist
    loads = False  # True: saved() and load() exist, but not committed() and begin()
    codecs: tuple = ("own", "fp16", "bf16", "2bit", "1bit", "topk")
    one_error = True  # True: if several weights differ, all ranks raise the same error
    names_of_both: tuple = ("(6, 9)", "(6, 8)")
    numbered = True  # True: names of tensors count the trainers of a process
    rows: tuple = (4, 2, 7)  # rows of the batches in a test of several batch sizes
    graphs = False  # True: each trainer needs a new graph, which is slow, so there are fewer cases
    errors: tuple = (hvdlite.HvdliteError,)

    @classmethod
    def compression(cls, name: str):
        kinds = cls.hvd.Compression
        made = {
            "own": lambda: Halved,
            "2bit": lambda: kinds.two_bit(0.01),
            "1bit": lambda: kinds.one_bit(),
            "topk": lambda: kinds.top_k(0.5),
        }
        return made[name]() if name in made else getattr(kinds, name)

    @classmethod
    def make_alone(cls, weights) -> None:
        """Make an extra optimizer or trainer, which hvdlite numbers, on only this rank."""
        cls(weights)

    @staticmethod
    def end_all() -> None:
        """Wait until all operations of a failed step have ended."""

    def freeze(self, numbers) -> None:
        """Train only the other weights from now on."""
        raise NotImplementedError

    def follow(self, root: int) -> None:
        """Take the weights and states of the rank ``root``."""
        raise NotImplementedError

    def train(self, *passes: np.ndarray, layers: int = 0, factor: float = 1) -> None:
        """Do one step with one or several batches.

        :param layers: 1: this rank uses only the first layer; 2: this rank uses both, but other
            ranks may not; 0: all ranks use both.
        :param factor: multiplies the loss.
        """
        raise NotImplementedError


TRAINERS: list = []


def trainer(cls):
    TRAINERS.append(cls)
    return cls


def wanted_trainers() -> list:
    """Return the trainers of the libraries that this run tests (WANTED) and that are installed."""
    for name in ("mxnet", "torch", "keras", "tensorflow", "jax"):
        if imported(name):
            importlib.import_module(f"{name}_trainers")
    return TRAINERS
