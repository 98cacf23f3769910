"""How often nudges woke each rank, without a window, while all wait for the last; argv[1] times."""

import sys
import time
from pathlib import Path

import numpy as np
from jobs import report
from mpi4py import MPI

import hvdlite as hvd


def wakes() -> int:
    """Return how often the thread that receives nudges has slept; -1: there is none."""
    for thread in Path("/proc/self/task").iterdir():
        if (thread / "comm").read_text() == "hvdlite-nudge\n":
            lines = (thread / "status").read_text().splitlines()
            return sum(int(x.split()[1]) for x in lines if x.startswith("voluntary_ctxt"))
    return -1


hvd.init()
hvd.numpy.allreduce(np.ones(4), name="warm")
before = wakes()
right = True
for _ in range(int(sys.argv[1])):
    MPI.COMM_WORLD.Barrier()
    if hvd.rank() == hvd.size() - 1:
        time.sleep(0.02)  # the others' engines are asleep
    right &= bool((hvd.numpy.allreduce(np.ones(4), name="late", op=hvd.Sum) == hvd.size()).all())
report(hvd.rank(), threads=before >= 0, wakes=wakes() - before, right=right)
