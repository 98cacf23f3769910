"""Rank 0 opens a group in one thread and shuts down in another, before rank 1 opens the group."""

import threading

from jobs import report
from mpi4py import MPI

import hvdlite as hvd
from hvdlite.core.native import ffi, lib, new_error

WORLD = MPI.COMM_WORLD


def open_group(opened: list) -> None:
    """Append the code, the error's text and the group's number."""
    error, group = new_error(), ffi.new("int *")
    comm, ranks = ffi.cast("void *", MPI._addressof(WORLD)), ffi.new("int[]", [0, 1])
    code = lib.hvd_group_open(comm, ranks, group, error)
    opened.extend([code, ffi.string(error.text).decode(), group[0]])


hvd.init()
order = WORLD.Dup()
opened: list = []
thread = threading.Thread(target=open_group, args=[opened], daemon=True)
if hvd.rank() == 0:
    thread.start()
    thread.join(0.5)  # by now it waits for rank 1
hvd.shutdown()
order.Barrier()
if WORLD.rank:
    hvd.init(MPI.COMM_SELF)  # opens it from another job
    open_group(opened)
    assert opened[0] == lib.HVD_OK, opened
    lib.hvd_group_close(opened[2])
else:
    thread.join(20)
    assert opened[0] == lib.HVD_NOT_INITIALIZED, opened
    report(0, text=opened[1])
