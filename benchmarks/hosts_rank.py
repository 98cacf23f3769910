"""The program of each rank of benchmarks/hosts.py: measures one library's allreduce, call by call.

    python -m benchmarks.hosts_rank --rank FOLDER LIBRARY BYTES ...

All ranks begin a call together. Each rank records its own seconds, the bytes that its host has
sent, and the CPU seconds of all cores of the machine.
"""

import os
import sys
import time
from pathlib import Path
from typing import Callable, Dict, List

from benchmarks import harness

SECONDS = 2.0  # for each size, the calls take about this many seconds
LEAST, MOST = 3, 50  # numbers of calls
LATE, LATE_CALLS = 0.05, 20  # delay in seconds of the last rank, number of delayed calls
LATE_BYTES = 4096

Calls = Dict[str, Callable[[], object]]  # library -> a function that does one allreduce


class OverMPI:
    """Ranks that MPI has started. An unmeasured MPI barrier makes calls begin together."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self.module().init()
        self.comm = MPI.COMM_WORLD
        self.rank, self.size = self.comm.rank, self.comm.size
        self.meet = self.comm.Barrier

    def mean(self, value: float) -> float:
        return self.comm.allreduce(value) / self.size


class Hvdlite(OverMPI):
    """hvdlite and MPI_Allreduce, which take turns in the same processes."""

    name = "hvdlite"

    def module(self):
        import hvdlite as hvd

        return hvd

    def calls(self, size: int) -> Calls:
        import numpy as np

        import hvdlite.numpy

        x = np.ones(size // 4, "float32")
        y = np.zeros_like(x)  # unlike np.zeros(), this writes to y: first writes are slow
        return {
            self.name: lambda: hvdlite.numpy.allreduce(x, name=f"x{size}", out=y),
            "MPI_Allreduce": lambda: self.comm.Allreduce(x, y),
        }


class OverTcp(Hvdlite):
    name = "hvdlite, tcp"

    def module(self):
        os.environ["HVDLITE_TRANSPORT"] = "tcp"
        return super().module()


class Horovod(OverMPI):
    def module(self):
        import horovod.mxnet as hvd

        return hvd

    def calls(self, size: int) -> Calls:
        import mxnet as mx

        x, hvd = mx.nd.ones((size // 4,)), self.module()

        def call() -> None:
            hvd.allreduce_(x, name=f"x{size}")
            x.wait_to_read()

        return {"Horovod": call}


class Servers:
    """MXNet's parameter server: each worker pushes an array and pulls the servers' sum."""

    def __init__(self) -> None:
        import mxnet as mx

        self.store = mx.kv.create("dist_sync")
        self.rank, self.size = self.store.rank, self.store.num_workers
        self.meet = self.store._barrier  # the barrier of MXNet's store is private
        self.keys = 0

    def key_of(self, array) -> int:
        self.keys += 1
        self.store.init(self.keys, array)
        return self.keys

    def mean(self, value: float) -> float:
        import mxnet as mx

        x = mx.nd.array([value])
        key = self.key_of(mx.nd.zeros((1,)))
        self.store.push(key, x)
        self.store.pull(key, x)
        return x.asscalar() / self.size

    def calls(self, size: int) -> Calls:
        import mxnet as mx

        x, y = mx.nd.ones((size // 4,)), mx.nd.zeros((size // 4,))
        key = self.key_of(y)

        def call() -> None:
            self.store.push(key, x)
            self.store.pull(key, y)
            y.wait_to_read()

        return {"parameter server": call}


LIBRARIES = {"hvdlite": Hvdlite, "tcp": OverTcp, "horovod": Horovod, "ps": Servers}


def sent() -> int:
    """Return the bytes that this host has sent to other hosts, with headers."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()[2:]
    fields = [line.replace(":", " ").split() for line in lines]
    return sum(int(field[9]) for field in fields if field[0] != "lo")


def busy() -> float:
    """Return the CPU seconds of all cores so far: user, nice, system and interrupts."""
    ticks = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    return sum(int(ticks[i]) for i in (0, 1, 2, 5, 6)) / os.sysconf("SC_CLK_TCK")


def measure(library, call: Callable[[], object]) -> Dict[str, float]:
    library.meet()
    bytes_before, busy_before, begin = sent(), busy(), time.perf_counter()
    call()
    seconds = time.perf_counter() - begin
    library.meet()
    return {"seconds": seconds, "sent": sent() - bytes_before, "busy": busy() - busy_before}


def of_size(library, size: int) -> Dict[str, List[Dict[str, float]]]:
    """Return this rank's measurements of each contestant's calls. The contestants take turns."""
    calls = library.calls(size)
    for call in calls.values():  # the first call connects and negotiates the name
        measure(library, call)
    first = max(measure(library, call)["seconds"] for call in calls.values())
    number = min(MOST, max(LEAST, int(SECONDS / library.mean(first))))
    rows: Dict[str, List[Dict[str, float]]] = {name: [] for name in calls}
    for _ in range(number):
        for name, call in calls.items():
            rows[name].append(measure(library, call))
    return rows


def late(library) -> Dict[str, List[float]]:
    """Return this rank's seconds for each call that the last rank makes late."""
    taken: Dict[str, List[float]] = {}
    for name, call in library.calls(LATE_BYTES).items():
        call()
        taken[name] = []
        for _ in range(LATE_CALLS):
            library.meet()
            if library.rank == library.size - 1:
                time.sleep(LATE)
            begin = time.perf_counter()
            call()
            taken[name].append(time.perf_counter() - begin)
    return taken


def main() -> None:
    """Measure, and write this rank's results to a file in the folder, which all hosts share."""
    _, folder, name, *sizes = sys.argv[1:]
    library = LIBRARIES[name]()
    found = {"sizes": {size: of_size(library, int(size)) for size in sizes}, "late": late(library)}
    harness.write(folder, library.rank, found)


if __name__ == "__main__":
    main()
