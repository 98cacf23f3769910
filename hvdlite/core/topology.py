"""The ranks and hosts of the job, and this process's own."""

from typing import Optional

import numpy as np

from hvdlite.core.mpi import MPI
from hvdlite.core.native import call, ffi, lib

_comm: Optional[MPI.Intracomm] = None  # of the job
_homogeneous = False  # every host has equally many ranks
_left = 0  # jobs that this process has left


def enter(comm: MPI.Intracomm) -> None:
    """Keep the communicator of the job that this process has joined. Collective."""
    global _comm, _homogeneous
    _comm = comm
    sizes = np.zeros(comm.size, np.intc)  # no pickles: after a death MPI may return half of them
    comm.Allgather(np.array([local_size()], np.intc), sizes)
    _homogeneous = len(set(sizes)) == 1


def leave() -> None:
    """Forget the job's communicator."""
    global _comm, _left
    _comm = None
    _left += 1


def job_number() -> int:
    """Return a number that no other job of this process has."""
    return _left


def communicator() -> MPI.Intracomm:
    """Return the communicator that ``init()`` was given."""
    assert _comm is not None  # between init() and shutdown()
    return _comm


def is_initialized() -> bool:
    """Tell whether this process is between ``init()`` and ``shutdown()``."""
    return bool(lib.hvd_is_initialized())


def _where():
    topology = ffi.new("hvd_topology *")
    call(lib.hvd_where, topology)
    return topology


def rank() -> int:
    """Return this process's number in the job, from 0.

    :raises ValueError: before ``init()`` and after ``shutdown()``.
    """
    return _where().rank


def size() -> int:
    """Return the number of processes in the job.

    :raises ValueError: before ``init()`` and after ``shutdown()``.
    """
    return _where().size


def local_rank() -> int:
    """Return this process's number on its host, from 0.

    :raises ValueError: before ``init()`` and after ``shutdown()``.
    """
    return _where().local_rank


def local_size() -> int:
    """Return the number of processes of the job on this host.

    :raises ValueError: before ``init()`` and after ``shutdown()``.
    """
    return _where().local_size


def cross_rank() -> int:
    """Return this host's number, from 0, among those that have a process of this local rank.

    :raises ValueError: before ``init()`` and after ``shutdown()``.
    """
    return _where().cross_rank


def cross_size() -> int:
    """Return the number of hosts that have a process of this local rank.

    :raises ValueError: before ``init()`` and after ``shutdown()``.
    """
    return _where().cross_size


def is_homogeneous() -> bool:
    """Tell whether every host has the same number of processes of the job.

    :raises ValueError: before ``init()`` and after ``shutdown()``.
    """
    _where()
    return _homogeneous
