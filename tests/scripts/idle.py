"""CPU seconds of every thread of each rank while there is nothing to do, for argv[1] seconds."""

import resource
import sys
import time

from jobs import report
from mpi4py import MPI

import hvdlite as hvd


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def share_of_a_core() -> float:
    MPI.COMM_WORLD.Barrier()
    time.sleep(0.3)  # what was begun, ends
    cpu, start = cpu_seconds(), time.monotonic()
    time.sleep(float(sys.argv[1]))
    return (cpu_seconds() - cpu) / (time.monotonic() - start)


hvd.init()
report(hvd.rank(), after_init=share_of_a_core())

import hvdlite.mxnet  # noqa: E402 (MXNet's threads shall not count before)

# isort: split
import mxnet as mx  # noqa: E402

for i in range(20):
    hvd.allreduce(mx.nd.ones((1000,)), name=f"warm{i % 4}").wait_to_read()
report(hvd.rank(), after_work=share_of_a_core())
