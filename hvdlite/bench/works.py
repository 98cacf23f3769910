"""The work of a case: ``refresh()`` writes new data, ``run()`` is timed, ``check()`` verifies.

Each repetition has new data, as after backward. Without new data, a collective finds the last
repetition's data in the caches, and is faster than with gradients.
"""

import zlib

import numpy as np

from hvdlite.bench import machine, models
from hvdlite.bench.cases import KINDS, OPTIMIZERS, Case
from hvdlite.bench.library import Alone, gluon_parameters
from hvdlite.core.world import World

STEPS = 5  # training steps in one repetition
BATCH = 64  # images on each rank


class Collective:
    """A collective on each array: starts all, then waits for all."""

    per_run = 1
    warm_up = 3  # number of first runs, which allocate buffers and negotiate names
    least = 5  # least number of repetitions
    shared = 0  # number of arrays in memory that all ranks map
    alone = None  # the same work without the library, done in alternate repetitions

    def __init__(self, library, case: Case, world: World) -> None:
        self.library, self.case, self.rank, self.ranks = library, case, world.rank, world.size
        self.arrays = [library.make(self.brought(shape), case.dtype) for shape in case.shapes]
        self.start = library.starter(case.kind)
        self.names = [f"{case.name}.{i}" for i in range(len(self.arrays))]
        self.results: list = []

    def brought(self, shape) -> tuple:
        """Return the shape of this rank's input, chosen so that the result has equal parts."""
        kind = KINDS[self.case.kind]
        parts = len(kind.result(self.ranks))
        rows = max(1, shape[0] // parts) * parts
        return (int(rows * kind.gives(self.ranks)), *shape[1:])

    def refresh(self) -> None:
        for array in self.arrays:
            self.library.fill(array, self.rank + 1)
        self.library.wait_filled()

    def run(self) -> None:
        start, named = self.start, zip(self.arrays, self.names)
        started = [start(x, name=name, priority=-i) for i, (x, name) in enumerate(named)]
        self.results = self.library.finish(started)

    def check(self) -> None:
        """Compare the results with the expected values; raise AssertionError if they differ."""
        expected = KINDS[self.case.kind].result(self.ranks)
        for i, result in enumerate(self.results):
            parts = self.library.to_numpy(result).reshape(len(expected), -1)
            for part, value in zip(parts, expected):
                assert np.all(part == value), f"{self.case.name}: array {i} is not {value}"


class Gradients(Collective):
    """The work of ``allreduce_grads()``, in a gluon trainer whose gradients are the arrays."""

    def __init__(self, library, case: Case, world: World) -> None:
        self.library, self.case, self.rank, self.ranks = library, case, world.rank, world.size
        params = gluon_parameters(case)
        self.trainer = library.trainer(params, case)
        self.shared = library.shared
        self.arrays = [param.grad() for param in params.values()]

    def run(self) -> None:
        self.trainer.allreduce_grads()
        self.results = self.library.finish(self.arrays)

    def check(self) -> None:
        """Expect the average, or the sum if the trainer divides the sum in the update."""
        total = KINDS["allreduce"].result(self.ranks)[0]
        for i, result in enumerate(self.results):
            values = self.library.to_numpy(result)
            least, most = values.min(), values.max()
            right = least == most and least in (total, total / self.ranks)
            assert right, f"{self.case.name}: gradient {i} holds {least} to {most}"


class Update:
    """The average of all gradients and the update of all weights, in one call."""

    per_run = 1
    warm_up, least = 2, 3  # few repetitions, because an update of half a gigabyte takes seconds
    alone = None

    def __init__(self, library, case: Case, world: World) -> None:
        self.case, self.world, self.steps = case, world, 0
        self.before = machine.own_memory()
        self.updating = library.updating(case)
        self.shared = library.shared

    def refresh(self) -> None:
        self.updating.write(self.world.rank + 1)

    def run(self) -> None:
        self.updating.step()
        self.steps += 1

    def held(self) -> int:
        """Return the bytes that the work has added to the memory of all ranks. Collective."""
        return sum(self.world.allgather(machine.own_memory() - self.before))

    def check(self) -> None:
        """Compare the weights with those that ``self.steps`` updates by equal gradients give."""
        gradient = KINDS["allreduce"].result(self.world.size)[0] / self.world.size
        expected = OPTIMIZERS[self.case.optimizer].weight(gradient, self.steps)
        for i, weight in enumerate(self.updating.weights()):
            near = np.isclose([weight.min(), weight.max()], expected, rtol=1e-3).all()
            assert near, (
                f"{self.case.name}: weight {i} is not {expected}, but {weight.min()} to "
                f"{weight.max()}"
            )


class Training:
    """Training steps of LeNet on one batch, which differs between ranks.

    Repetitions alternate with the same steps of processes that train alone, so that a change of the
    machine's speed affects both. The library must use no core while it has no work.
    """

    per_run, warm_up, least = STEPS, 3, 5

    def __init__(self, library, case: Case, world: World) -> None:
        import mxnet as mx

        self.world, self.library = world, library
        array = models.arrays_of_gluon().array
        mx.random.seed(0)
        self.net = models.lenet()
        self.net.initialize(mx.init.Xavier())
        self.net.hybridize()
        random = np.random.RandomState(world.rank)
        self.images = array(random.uniform(size=(BATCH, 1, 28, 28)))
        self.labels = array(random.randint(0, 10, BATCH))
        self.net(self.images).wait_to_read()
        self.loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
        self.trainer = library.trainer(self.net.collect_params(), case)
        self.shared = library.shared
        self.alone = Training(Alone(), case, world) if library.idles else None

    def refresh(self) -> None:
        """Do nothing: backward writes the gradients."""

    def run(self) -> None:
        import mxnet as mx

        for _ in range(STEPS):
            with mx.autograd.record():
                loss = self.loss(self.net(self.images), self.labels)
            loss.backward()
            self.trainer.step(BATCH)
        mx.nd.waitall()

    def check(self) -> None:
        weights = [p.data().asnumpy() for p in self.net.collect_params().values()]
        assert all(np.isfinite(weight).all() for weight in weights), "training has diverged"
        if self.library.synchronizes:
            bits = b"".join(weight.tobytes() for weight in weights)
            assert len(set(self.world.allgather(zlib.crc32(bits)))) == 1, (
                "weights differ between ranks"
            )


def make(library, case: Case, world: World):
    """Return the work of the case; None: the library can't do it. Collective."""
    if not library.takes(case):
        return None
    if case.kind == "step":
        return Training(library, case, world)
    if case.kind == "update":
        return Update(library, case, world)
    return (Collective if case.memory == "private" else Gradients)(library, case, world)
