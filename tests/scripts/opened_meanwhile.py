"""Rank 0 opens a group in a thread, and meanwhile shuts down or leaves the job, as argv says.

Rank 1 opens the group afterwards.
"""

import sys
import threading
import time

from jobs import report
from mpi4py import MPI

import hvdlite as hvd
from hvdlite.bootstrap.mpi.loading import by_mpi
from hvdlite.core.native import ffi, lib, new_error

WORLD, leaves = MPI.COMM_WORLD, sys.argv[1] == "leaves"
opened: list = []


def open_group() -> None:
    """Open a group; append the returned code, the error's text and the group's number to opened."""
    error, group = new_error(), ffi.new("int *")
    ranks = ffi.new("int[]", [0, 1])
    code = lib.hvd_group_open(by_mpi(WORLD), ranks, group, error)
    opened.extend([code, ffi.string(error.text).decode(), group[0]])


def error_in_group() -> str:
    """Return the error of a collective that this rank submits to the opened group."""
    error, value, name = new_error(), ffi.new("char *"), ffi.new("char[]", b"late")
    fields = {"name": name, "kind": lib.HVD_BROADCAST, "dtype": lib.HVD_UINT8, "group": opened[2]}
    handle = lib.hvd_start(ffi.new("hvd_tensor *", {**fields, "in": value, "out": value}), error)
    assert not handle or lib.hvd_finish(handle, 10, error)
    return ffi.string(error.text).decode()


def leave() -> None:
    lib.hvd_leave(lib.HVD_ALL_GROUPS, b"done")


hvd.init()
order = WORLD.Dup()
if WORLD.rank == 0:
    thread = threading.Thread(target=open_group, daemon=True)
    thread.start()
    thread.join(2)  # after 2 s the thread waits for rank 1
    leave()
if not leaves:
    hvd.shutdown()
order.Barrier()
if WORLD.rank == 0:
    thread.join(60)
else:
    if not leaves:
        hvd.init(MPI.COMM_SELF)  # rank 1 opens the group in another job
    open_group()
code, text, group = opened
if leaves:
    assert code == lib.HVD_OK, text
    refused = error_in_group() if WORLD.rank == 0 else ""
    leave()
    end = time.monotonic() + 60
    while not lib.hvd_wait_end(lib.HVD_ALL_GROUPS, 0.1) and time.monotonic() < end:
        pass
    report(WORLD.rank, ended=lib.hvd_wait_end(lib.HVD_ALL_GROUPS, 0), refused=refused)
    lib.hvd_close()
elif WORLD.rank:
    assert code == lib.HVD_OK, text
    lib.hvd_group_close(group)
else:
    assert code == lib.HVD_NOT_INITIALIZED, text
    report(0, text=text)
