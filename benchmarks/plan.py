"""Who is measured, and how each is started."""

import os
from pathlib import Path
from typing import Dict, List, NamedTuple

from benchmarks.harness import ROOT

CORES = len(os.sched_getaffinity(0))
KEPT, ROUNDS = "bench", 5  # build/bench.json
RANKS = (2, 4)
RATE = "200mbit"  # of the links of hosts that tests/cluster.py makes

# The same for all: one thread a rank, no binding, and waiting that yields where ranks outnumber
# cores.
_LINES = (ROOT / "tools" / "mpi.env").read_text(encoding="utf-8").splitlines()
SETTINGS = {
    **dict(line.split("=") for line in _LINES if not line.startswith("#")), "OMP_NUM_THREADS": "1",
}  # fmt: skip
# Open MPI allocates working memory in each large allreduce; else half of its time is page faults.
KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": "1000000000",
    "MALLOC_TRIM_THRESHOLD_": "4000000000",
    "MALLOC_TOP_PAD_": "256000000",
}


class Contestant(NamedTuple):
    """A library with its settings; ``name`` is its column in the report."""

    name: str
    library: str
    environment: Dict[str, str] = {}

    @property
    def python(self) -> Path:
        venv = ".venv" if self.library in ("hvdlite", "alone") else ".venv-peers"
        return ROOT / venv / "bin" / "python"

    def takes(self, ranks: int) -> bool:
        """Tell whether it is measured there: some take minutes where ranks outnumber cores."""
        return ranks <= CORES or self.library not in ("gloo", "ps")

    def processes(self, ranks: int) -> int:
        """How many it takes for so many that compute."""
        return 2 * ranks + 1 if self.library == "ps" else ranks

    def settings(self, processes: int) -> Dict[str, str]:
        yielding = {"OMPI_MCA_mpi_yield_when_idle": "1"} if processes > CORES else {}
        return {**SETTINGS, **yielding, **self.environment}


HVDLITE = Contestant("hvdlite", "hvdlite")
HOROVOD = Contestant("Horovod", "horovod")
HOROVOD_TUNED = Contestant(
    "Horovod, tuned", "horovod", {"HOROVOD_CYCLE_TIME": "0.1", **KEEP_MEMORY}
)
MPI = Contestant("MPI", "mpi")
MPI_TUNED = Contestant("MPI, tuned", "mpi", KEEP_MEMORY)
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
    HVDLITE, HOROVOD, HOROVOD_TUNED, MPI, MPI_TUNED, GLOO, GLOO_TUNED, PS, PS_TUNED, ALONE
]  # fmt: skip


UPDATING = [HVDLITE, HOROVOD_TUNED, ZERO_TUNED, ALONE]  # average and update weights
HELD_RANKS = (1, 2, 4, 8)
