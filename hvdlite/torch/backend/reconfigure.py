"""Reconfigure: a process leaves its job and joins a new job, whose ranks are named by handles.

The surviving ranks continue in the same processes, without the dead ranks and with new ranks. Each
set of ranks is a separate job. The ranks of a job meet by PyTorch's store. A rank can't leave a job
over MPI.
"""

import os
from datetime import timedelta
from typing import Collection, Tuple

import torch.distributed as dist

from hvdlite import job
from hvdlite.core import member, places, start, topology
from hvdlite.core.native import HvdliteError, failures_kept
from hvdlite.torch.backend import compiled, groups
from hvdlite.torch.backend.place import own_address

_LAUNCHER = "reconfigure"


def create(store: dist.Store, rank: int, size: int, timeout: timedelta):
    """Return the backend of a process group that has no ranks until ``reconfigure`` is called.

    :raises hvdlite.HvdliteError: the ranks of an MPI job can't change.
    """
    again = Reconfigure(store, rank)
    groups.own_memory()
    glue = compiled.load(groups.bucket)
    return glue.make(rank, size, 0, "torch.new", timeout.total_seconds(), store, again)


class Reconfigure:
    """Joins this process to a new job. A process group calls this object in ``reconfigure()``.

    :param store: a store that all ranks of this job and of later jobs use.
    :raises HvdliteError: this process is a rank of an MPI job.
    """

    def __init__(self, store: dist.Store, rank: int) -> None:
        _check_not_by_mpi()
        self._store = store
        self.handle = f"hvdlite:{rank}:{os.getpid()}:{os.urandom(8).hex()}"

    @failures_kept()
    def __call__(
        self, uuid: int, handles: Collection[str], seconds: float
    ) -> Tuple[int, int, str, dist.Store]:
        """Join the job of the processes with these handles; return rank, size, group and store.

        :param handles: the handles of all ranks: a list in rank order, or a set, which is sorted.
        :raises HvdliteError: this process's handle is missing, or ``uuid`` was used before, or a
            rank did not join within ``seconds``.
        """
        ordered = sorted(handles) if isinstance(handles, (set, frozenset)) else list(handles)
        if self.handle not in ordered or len(set(ordered)) < len(ordered):
            raise HvdliteError(
                f"reconfigure {uuid}: expected each rank's handle exactly once, with this "
                f"process's handle {self.handle} among them; got {ordered}"
            )
        store = dist.PrefixStore(f"hvdlite/reconfigure/{uuid}", self._store)
        rank, timeout = ordered.index(self.handle), timedelta(seconds=seconds)
        if rank == 0 and store.add("claimed", 1) > 1:
            raise HvdliteError(f"reconfigure: uuid {uuid} was already used: give a new one")
        join(store, rank, len(ordered), timeout)
        return rank, len(ordered), f"torch.r{uuid}", store


def join(store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
    """Leave this process's job and join a job of the ranks that call this with the same store.

    :param store: a new store, or a PrefixStore with a new prefix.
    :raises HvdliteError: hvd.init() has made the current job; or a rank did not join in time.
    """
    _check_not_by_mpi()
    if topology.is_initialized() and not _is_ours():
        raise HvdliteError(
            "reconfigure: hvd.init() or another process group has begun a job in this process: "
            "first make the group, then call hvd.init()"
        )
    where = places.place_by_store(store, _LAUNCHER, rank, size, own_address(store), timeout)
    compiled.load(groups.bucket).begin_job()
    job.join_other_job(where, timeout.total_seconds())


def _check_not_by_mpi() -> None:
    if start.has_mpi_ranks():
        raise HvdliteError(
            "reconfigure needs ranks that can leave their job, but ranks can't leave an MPI job: "
            f"start the ranks with torchrun, or with {member.TRANSPORT}=tcp"
        )


def _is_ours() -> bool:
    known = start.without_mpi()
    return known is not None and known.launcher == _LAUNCHER
