"""How often each rank's engine wakes while all wait for rank 0's array, argv[1] seconds."""

import sys
import time
from pathlib import Path

import numpy as np
from jobs import report
from mpi4py import MPI

import hvdlite as hvd


def sleeps() -> int:
    """Return how often the core's threads have gone to sleep so far."""
    total = 0
    for thread in Path("/proc/self/task").iterdir():
        if (thread / "comm").read_text() == "hvdlite\n":
            lines = (thread / "status").read_text().splitlines()
            total += sum(int(x.split()[1]) for x in lines if x.startswith("voluntary_ctxt"))
    return total


hvd.init()
hvd.numpy.allreduce(np.ones(4), name="warm")
MPI.COMM_WORLD.Barrier()
time.sleep(0.3)  # what was begun, ends
before = sleeps()
handle = hvd.numpy.allreduce_async(np.ones(4), name="late") if hvd.rank() else None
time.sleep(float(sys.argv[1]))
report(hvd.rank(), sleeps=sleeps() - before)
if handle:
    handle.synchronize()
else:
    hvd.numpy.allreduce(np.ones(4), name="late")
