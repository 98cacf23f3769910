"""Ways to end a job. The first argument names a function of this file, or several, as a+b."""

import argparse
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from jobs import report

import hvdlite as hvd
import hvdlite.numpy

how = sys.argv[1]
if "RANK" in os.environ:
    own = int(os.environ["RANK"])
else:
    from mpi4py import MPI

    own = MPI.COMM_WORLD.rank
if how.endswith("_before_init") and own == 1:
    if how == "one_raises_before_init":
        raise RuntimeError("no data here")
    if how == "one_exits_before_init":
        argparse.ArgumentParser().error("no such option")
    sys.exit()
if own == 0 and "late" in sys.argv:
    time.sleep(2)  # longer than rank 1's HVDLITE_EXIT_TIMEOUT_SECONDS
    sys.argv.pop()
hvd.init(eval(sys.argv[2]) if how == "one_ends_before_init" and sys.argv[2:] else None)
rank, size = hvd.rank(), hvd.size()
if "pushed" in how or how == "pending_for_ever":
    import hvdlite.mxnet

    # isort: split
    import mxnet as mx


def pushed_then_end():
    """Leave operations pending that must complete although the script does not wait for them."""
    for i in range(50):
        hvd.allreduce_(mx.nd.ones((10_000,)), name=f"last{i}")


def pushed_then_shutdown():
    results = [hvd.allreduce(mx.nd.full((1000,), i), op=hvd.Sum, name=f"s{i}") for i in range(50)]
    hvd.shutdown()
    report(rank, pushed=all(y.asnumpy()[0] == i * size for i, y in enumerate(results)))
    hvd.init()
    report(rank, again=float(hvd.allreduce(mx.nd.ones(1), op=hvd.Sum).asscalar()))


def pending_for_ever():
    """Leave operations pending that no other rank submits."""
    hvd.allreduce_(mx.nd.ones((10,)), name=f"only rank {rank}")
    if size > 1:
        x = mx.nd.ones((10,))
        hvd.broadcast_(x, 0, name=f"only rank {rank}, too")


def one_ends_early_the_others_compute_on():
    if rank != 1:
        time.sleep(3)  # stands for a computation
        report(rank, computed=True)


def one_raises_while_the_others_compute_for_long():
    if rank == 1:
        raise RuntimeError("broken")
    time.sleep(600)  # stands for a computation
    report(rank, computed=True)


def one_raises_while_its_threads_wait():
    """The threads wait for a tensor that rank 0 never submits, because rank 0 waits for rank 1."""
    if rank == 1:
        handle = hvd.numpy.allreduce_async(np.ones(1), name="a")
        pool = ThreadPoolExecutor(4)
        for _ in range(4):
            pool.submit(handle.synchronize)
        raise RuntimeError("broken")
    hvd.numpy.allreduce(np.ones(1), name="b")


def one_exits_while_the_others_compute_for_long():
    if rank == 1:
        sys.exit(eval(sys.argv[2]))
    time.sleep(600)  # stands for a computation
    report(rank, computed=True)


def one_fails_when_others_have_left_and_compute_for_long():
    """Rank 0 fails after it has left the job, fails in the job, or waits for the other ranks."""
    if rank or sys.argv[2] == "left":
        hvd.shutdown()
    if rank:
        time.sleep(600)  # stands for a computation
        report(rank, computed=True)
    elif sys.argv[2] == "waits":
        hvd.numpy.allreduce(np.ones(1))
    else:
        sys.exit(3)


def one_ends_before_init():
    report(own, initialized=True)


one_exits_before_init = one_raises_before_init = one_ends_before_init


def wait_to_be_killed():
    """Create a file that tells the test to send the signal, and wait for the signal."""
    hvd.numpy.allreduce(np.ones(1))
    open(f"{os.environ['READY']}/{rank}", "w").close()
    if rank:
        hvd.numpy.allreduce(np.ones(1), name="rank 0 does not come")
    time.sleep(600)


def shutdown_at_work():
    """Call shutdown() while a collective is in progress on each rank."""
    y = hvd.allreduce(mx.nd.ones((3_000_000,)), op=hvd.Sum)
    hvd.shutdown()
    report(rank, at_work=bool((y.asnumpy() == size).all()))


def mpi4py_after_us():
    """Use mpi4py, which owns MPI, before and after shutdown()."""
    hvdlite.numpy.allreduce(np.ones(3))
    both = MPI.COMM_WORLD.allreduce(1)
    hvd.shutdown()
    report(rank, mpi4py=both == MPI.COMM_WORLD.allreduce(1) == size)


for each in how.split("+"):
    hvd.init()
    globals()[each]()
if how.endswith("pushed_then_end"):
    sys.exit(0)  # exit code 0 is no failure
