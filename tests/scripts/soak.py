"""A job that uses hvdlite in many ways for a number of seconds; its resources may not grow.

    mpirun -n 2 python tests/scripts/soak.py 600

Each round calls init, makes process sets, runs collectives of many sizes and names (some fail), and
calls join and shutdown. Each rank reports its resources after the first rounds and after the last.
"""

import ctypes
import gc
import os
import sys
import time
from pathlib import Path
from typing import Dict

import numpy as np
from jobs import report
from mpi4py import MPI

import hvdlite as hvd
import hvdlite.numpy

LIBC = ctypes.CDLL(None)
WORLD = MPI.COMM_WORLD
WARM = 5  # rounds until caches and pools have their final size
GROWTH_KB = 4096  # growth that allocators and MPI may cause, in KB


def descriptors() -> int:
    time.sleep(0.002)  # threads that are reading a file close it in less time
    return len(os.listdir("/proc/self/fd"))


def held() -> Dict[str, int]:
    time.sleep(0.1)  # a joined thread stays in /proc for a moment
    gc.collect()  # frees errors, whose frames hold arrays
    LIBC.malloc_trim(0)  # otherwise memory that malloc has freed would count
    status = Path("/proc/self/status").read_text().split()
    return {
        "descriptors": min(descriptors() for _ in range(20)),
        "threads": len(os.listdir("/proc/self/task")),
        "mappings of hvdlite": Path("/proc/self/maps").read_text().count("memfd:hvdlite"),
        "KB": int(status[status.index("VmRSS:") + 1]),
    }


def collectives(random, name: str, process_set) -> None:
    """Run random collectives, the same on every rank of the set."""
    for i in range(20):
        n = int(random.choice([0, 1, 7, 1000, 30_000, 500_000]))
        array = np.full(n, process_set.rank() + 1, random.choice(["float32", "float16", "int64"]))
        total = hvd.numpy.allreduce(array, f"{name}{i % 7}", hvd.Sum, process_set=process_set)
        size = process_set.size()
        assert (total == size * (size + 1) // 2).all(), (name, n, array.dtype)
    assert len(hvd.numpy.allgather(np.ones(3), process_set=process_set)) == 3 * size
    hvd.numpy.alltoall(np.ones((2 * size, 5)), process_set=process_set)
    if size == 1:
        return
    try:
        hvd.numpy.allreduce(
            np.ones(1 + process_set.rank()), f"{name}.wrong", process_set=process_set
        )
    except hvd.HvdliteError:
        return
    raise AssertionError("ranks disagree on the shape: there must be an error")


def one_round(number: int) -> None:
    random = np.random.RandomState(number)
    hvd.init()
    some = hvd.add_process_set([0])
    collectives(random, "world", hvd.global_process_set)
    if some.included():
        collectives(random, "some", some)
    for _ in range(hvd.rank()):
        hvd.numpy.allreduce(np.ones(100), name="late")
    hvd.join()
    if number % 2:  # in every second round shutdown() removes the set
        hvd.remove_process_set(some)
    hvd.shutdown()


def soak(seconds: float) -> None:
    begin, number, first = time.monotonic(), 0, held()
    last_round = False
    while not last_round:
        one_round(number)
        number += 1
        if number == WARM:
            first = held()
        over = number > WARM and time.monotonic() - begin > seconds
        last_round = WORLD.allreduce(over, MPI.LOR)
    last = held()
    report(WORLD.rank, rounds=number, first=first, last=last)
    for what, count in last.items():
        limit = first[what] + (GROWTH_KB if what == "KB" else 0)
        assert count <= limit, f"{what}: {first[what]} after {WARM} rounds, {count} after {number}"


soak(float(sys.argv[1]))
