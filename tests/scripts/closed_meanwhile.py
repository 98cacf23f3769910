"""Rank 0 opens a group in one thread and shuts down in another, before rank 1 opens the group."""

import threading

import numpy as np
from jobs import report
from mpi4py import MPI

import hvdlite as hvd
from hvdlite._native import ffi, lib, new_error

WORLD = MPI.COMM_WORLD


def open_group(ended: list) -> None:
    error, group = new_error(), ffi.new("int *")
    comm, ranks = ffi.cast("void *", MPI._addressof(WORLD)), ffi.new("int[]", [0, 1])
    ended.append(lib.hvd_group_open(comm, ranks, group, error))
    report(0, text=ffi.string(error.text).decode())


def take_part() -> None:
    """Make the collective calls of hvd_group_open, without a window, on a rank without a job."""
    _data, control = WORLD.Dup(), WORLD.Dup()
    local = control.Split_type(MPI.COMM_TYPE_SHARED, WORLD.rank)
    local.Bcast(np.zeros(1, "i"), 0)
    control.Allgather(np.zeros(1, "i"), np.zeros(2, "i"))
    local.Bcast(np.zeros(64, "b"), 0)
    local.Allreduce(np.zeros(3, "i"), np.zeros(3, "i"), MPI.MIN)
    control.Allreduce(np.zeros(1, "i"), np.zeros(1, "i"), MPI.MIN)
    local.Free()
    control.Allgather(np.zeros(112, "b"), np.zeros(224, "b"))  # signs of life


hvd.init()
order = WORLD.Dup()
ended: list = []
thread = threading.Thread(target=open_group, args=[ended], daemon=True)
if hvd.rank() == 0:
    thread.start()
    thread.join(0.5)  # by now it waits for rank 1
hvd.shutdown()
order.Barrier()
if WORLD.rank:
    take_part()
else:
    thread.join(20)
    assert ended == [lib.HVD_NOT_INITIALIZED], ended
