"""Measurements for tests/test_shown.py; argv: the name, and seconds, rounds or the kind of array.

idle: the CPU use of each rank, as a share of a core, when the ranks do nothing.
waiting: how often the engine of each rank sleeps while all ranks wait for rank 0's array.
nudged: how often datagrams wake each rank, without shared memory, while all wait for the last rank.
large: whether results with more than 2^31 bytes are right.
"""

import resource
import sys
import time
from pathlib import Path

import numpy as np
from jobs import report
from mpi4py import MPI

import hvdlite as hvd
import hvdlite.numpy

what, given = sys.argv[1:]
hvd.init()
rank, size = hvd.rank(), hvd.size()


def share_of_a_core() -> float:
    """Return the CPU use of an idle rank: the least of three figures, to exclude disturbances."""
    MPI.COMM_WORLD.Barrier()
    time.sleep(0.3)  # pending work ends meanwhile
    return min(measured(float(given) / 3) for _ in range(3))


def measured(given_seconds: float) -> float:
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    time.sleep(given_seconds)
    after, seconds = resource.getrusage(resource.RUSAGE_SELF), time.monotonic() - start
    return (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime) / seconds


def idle() -> None:
    report(rank, after_init=share_of_a_core())

    # isort: split
    import mxnet as mx

    for i in range(20):
        hvd.allreduce(mx.nd.ones((1000,)), name=f"warm{i % 4}").wait_to_read()
    report(rank, after_work=share_of_a_core())


def sleeps(name: str) -> int:
    """Return how often threads with this name have slept; -1 if there is no such thread."""
    found = []
    for thread in Path("/proc/self/task").iterdir():
        if (thread / "comm").read_text() == f"{name}\n":
            lines = (thread / "status").read_text().splitlines()
            found += [int(x.split()[1]) for x in lines if x.startswith("voluntary_ctxt")]
    return sum(found) if found else -1


def waiting() -> None:
    hvd.numpy.allreduce(np.ones(4), name="warm")
    MPI.COMM_WORLD.Barrier()
    time.sleep(0.3)  # pending work ends meanwhile
    before = sleeps("hvdlite")
    handle = hvd.numpy.allreduce_async(np.ones(4), name="late") if rank else None
    time.sleep(float(given))
    report(rank, sleeps=sleeps("hvdlite") - before)
    (handle or hvd.numpy.allreduce_async(np.ones(4), name="late")).synchronize()


def nudged() -> None:
    hvd.numpy.allreduce(np.ones(4), name="warm")
    before, right = sleeps("hvdlite-nudge"), True
    for _ in range(int(given)):
        MPI.COMM_WORLD.Barrier()
        if rank == size - 1:
            time.sleep(0.02)  # so that the engines of the other ranks sleep
        right &= bool((hvd.numpy.allreduce(np.ones(4), name="late", op=hvd.Sum) == size).all())
    report(rank, threads=before >= 0, wakes=sleeps("hvdlite-nudge") - before, right=right)


SAMPLES = [0, 1, 2**16 + 1, 2**29 - 1, 2**30, -2, -1]


def large() -> None:
    sums = [sum(i + 10 * (r + 1) for r in range(size)) for i in range(len(SAMPLES))]
    if given == "numpy":
        x = np.zeros(2**31 + 5, "uint8")
    else:
        # isort: split
        import mxnet as mx

        x = mx.nd.zeros((2**29 + 2**20 + 3,))
    where = [at % x.size for at in SAMPLES]
    for i, at in enumerate(where):
        x[at] = i + 10 * (rank + 1)
    last = {at: sums[i] for i, at in enumerate(where)}  # at equal positions the last remains
    if given == "numpy":
        y = hvd.numpy.allreduce(x, op=hvd.Sum)
        report(rank, zeros=int(np.count_nonzero(y)) == len(last), bytes=y.nbytes)
    else:
        y = hvd.allreduce_(x, op=hvd.Sum, name="large")
        report(rank, zeros=True, bytes=4 * x.size)
    values = {at: float(y[at] if given == "numpy" else y[at].asscalar()) for at in where}
    report(rank, right=values == last)
    if given != "numpy":
        hvd.broadcast_(x, size - 1, name="large").wait_to_read()


globals()[what]()
