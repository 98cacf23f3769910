"""The contestants, their settings, and the suites. One process measures the cases of a suite."""

import os
from functools import lru_cache
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional

from benchmarks import libraries, mpis
from benchmarks.harness import ROOT
from benchmarks.mpis import KEEP_MEMORY
from hvdlite.bench import cases
from hvdlite.bench.cases import Case, parse_size

CORES = len(os.sched_getaffinity(0))
KEPT, ROUNDS = "bench", 5  # results are in build/bench.json
RANKS = (2, 4)
RATE = "200mbit"  # rate of the links between the hosts of tests/cluster.py

# Settings of all contestants: no binding, and one thread per rank except where Contestant.settings
# has more. If there are more ranks than cores, waiting ranks yield.
_LINES = (ROOT / "tools" / "mpi.env").read_text(encoding="utf-8").splitlines()
SETTINGS = {
    **dict(line.split("=") for line in _LINES if not line.startswith("#")), "OMP_NUM_THREADS": "1",
}  # fmt: skip


class Contestant(NamedTuple):
    """A library with its settings; ``name`` is its column in the report.

    :ivar mpi: the MPI that starts the ranks, a name of mpis.SETTINGS.
    """

    name: str
    library: str
    environment: Dict[str, str] = {}
    mpi: str = mpis.OPEN_MPI

    @property
    def python(self) -> Path:
        venv = ".venv" if self.library in ("hvdlite", "alone") else ".venv-peers"
        return ROOT / venv / "bin" / "python"

    def left_out(self) -> Optional[str]:
        """Return why the library can't run here, or None."""
        if not self.python.exists():
            return f"{self.python.parent.parent.name} is missing: run `make peers`"
        built = libraries.BUILT.get(self.library, ROOT)
        if not built.exists():
            return f"{built.relative_to(ROOT)} is missing: run `make small-peers`"
        return _mpis_left_out(self.python).get(self.mpi)

    def takes(self, ranks: int) -> bool:
        """Return False if the library would take minutes because ranks outnumber the cores."""
        return ranks <= CORES or self.library not in ("gloo", "ps", "ucc", "deepspeed")

    def processes(self, ranks: int) -> int:
        """Return the number of processes that the library needs for ``ranks`` ranks."""
        return 2 * ranks + 1 if self.library == "ps" else ranks

    def settings(self, processes: int) -> Dict[str, str]:
        yielding = {"OMPI_MCA_mpi_yield_when_idle": "1"} if processes > CORES else {}
        # like hvdlite's helper threads, DeepSpeed's OpenMP threads use all cores of a rank
        threads = CORES // processes if self.library == "deepspeed" else 1
        openmp = {"OMP_NUM_THREADS": str(max(1, threads))}
        return {**SETTINGS, **openmp, **yielding, **self.environment}


_mpis_left_out = lru_cache(mpis.left_out)

HVDLITE = Contestant("hvdlite", "hvdlite")
HOROVOD = Contestant("Horovod", "horovod")
HOROVOD_TUNED = Contestant(
    "Horovod, tuned", "horovod", {"HOROVOD_CYCLE_TIME": "0.1", **KEEP_MEMORY}
)
MPI = Contestant("MPI", "mpi")
MPI_TUNED = Contestant("MPI, tuned", "mpi", KEEP_MEMORY)
# the MPIs of mpis.SETTINGS, except Open MPI with its default components, which is MPI_TUNED
OTHER_MPIS = [
    Contestant(name, "mpi", settings, name)
    for name, settings in mpis.SETTINGS.items()
    if name != mpis.OPEN_MPI
]
DEEPSPEED = Contestant("DeepSpeed", "deepspeed")
UCC = Contestant("UCC", "ucc")
GLOO = Contestant("Gloo", "gloo")
GLOO_TUNED = Contestant(
    "Gloo, tuned", "gloo", {"LOCAL_WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo"}
)
PS = Contestant("parameter server", "ps")
PS_TUNED = Contestant("parameter server, tuned", "ps", {"DMLC_LOCAL": "1"})
ALONE = Contestant("alone", "alone")
ZERO = Contestant("DDP and ZeRO", "zero", {"GLOO_SOCKET_IFNAME": "lo"})
ZERO_TUNED = Contestant(
    "DDP and ZeRO, tuned", "zero",
    {"LOCAL_WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo", **KEEP_MEMORY},
)  # fmt: skip

CONTESTANTS: List[Contestant] = [
    HVDLITE, HOROVOD, HOROVOD_TUNED, MPI, MPI_TUNED, *OTHER_MPIS, UCC, DEEPSPEED, GLOO, GLOO_TUNED,
    PS, PS_TUNED, ALONE,
]  # fmt: skip


# libraries that average gradients and update weights
UPDATING = [HVDLITE, HOROVOD_TUNED, ZERO_TUNED, ALONE]
HELD_RANKS = (1, 2, 4, 8)

# ---- works ----

SIZES = [parse_size(text) for text in ("4K", "64K", "1M", "4M", "16M", "64M", "400MB")]
LARGE = [size for size in SIZES if size >= 2**20]


def speed() -> List[Case]:
    """Return the cases of the report. The longest cases are last, because time may run out."""
    return [
        *cases.sweep(["allreduce"], SIZES[:-1], ["float32"], "private"),
        *cases.sweep(["allreduce"], LARGE[:-1], ["float32"], "zero-copy"),
        *(cases.tiny(memory) for memory in ("private", "trainer")),
        *(cases.step(memory) for memory in ("trainer", "zero-copy")),
        *(cases.model("resnet50", memory) for memory in ("private", "trainer", "zero-copy")),
        *(cases.one_array("allreduce", SIZES[-1], memory=m) for m in ("private", "zero-copy")),
    ]


UPDATES = {
    "update": [("lenet", "momentum"), ("resnet50", "momentum"), ("resnet50", "adam")],
    "update_large": [("vgg16", "momentum"), ("bert-base", "adam")],
}


def updates(suite: str) -> List[Case]:
    """Return the cases that average gradients and update all parameters, for each trainer."""
    trainers = ("trainer", "sharded")
    return [cases.update(n, memory, o) for n, o in UPDATES[suite] for memory in trainers]


def update() -> List[Case]:
    """Return the cases of :func:`updates`, and training steps."""
    return [*updates("update"), *(cases.step(memory) for memory in ("zero-copy", "sharded"))]


def small() -> List[Case]:
    """Return one short case of each sort, to test that a library works."""
    memories = ("private", "trainer", "zero-copy")
    reduced = [cases.one_array("allreduce", 4096, memory=memory) for memory in memories]
    return [*reduced, cases.step("trainer"), cases.step("zero-copy")]


SUITES = {
    "small": small,
    "speed": speed,
    # The gradients of one model as a trainer holds them.
    "memory": lambda: [cases.model("resnet50", "trainer")],
    "memory_zero_copy": lambda: [cases.model("resnet50", "zero-copy")],
    "update": update,
    "update_large": lambda: updates("update_large"),
    # The memory that a host needs for one update.
    "held_trainer": lambda: [cases.update("resnet50", "trainer", "momentum")],
    "held_sharded": lambda: [cases.update("resnet50", "sharded", "momentum")],
}
