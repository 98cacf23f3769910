"""Rank 0 opens a group in one thread and leaves the job in another; then rank 1 opens the group."""

import threading
import time

from jobs import report
from mpi4py import MPI

import hvdlite as hvd
from hvdlite.core.native import ffi, lib, new_error

WORLD = MPI.COMM_WORLD


def open_group() -> None:
    error, group = new_error(), ffi.new("int *")
    comm, ranks = ffi.cast("void *", MPI._addressof(WORLD)), ffi.new("int[]", [0, 1])
    assert lib.hvd_group_open(comm, ranks, group, error) == lib.HVD_OK, ffi.string(error.text)


hvd.init()
order = WORLD.Dup()
thread = threading.Thread(target=open_group)
if WORLD.rank == 0:
    thread.start()
    thread.join(0.5)  # by now it waits for rank 1
    lib.hvd_leave(lib.HVD_ALL_GROUPS, b"done")
order.Barrier()
if WORLD.rank == 0:
    thread.join()
else:
    open_group()
    lib.hvd_leave(lib.HVD_ALL_GROUPS, b"done")
end = time.monotonic() + 10
while not lib.hvd_wait_end(lib.HVD_ALL_GROUPS, 0.1) and time.monotonic() < end:
    pass
report(WORLD.rank, ended=lib.hvd_wait_end(lib.HVD_ALL_GROUPS, 0))
lib.hvd_close()
