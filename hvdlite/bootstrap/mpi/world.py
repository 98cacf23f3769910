"""The world of a job over MPI: the ranks of a communicator."""

import os
from array import array
from typing import Any, ContextManager, List, Optional, Sequence

from hvdlite.bootstrap.mpi.life import limited
from hvdlite.bootstrap.mpi.loading import MPI, by_mpi
from hvdlite.core import limits
from hvdlite.core.native import HvdliteError, call, ffi, lib
from hvdlite.core.world import World

_VALUE = 32_765  # a tag; meeting.py uses the two next tags


class MPIWorld(World):
    """The ranks of a communicator; see :class:`World`.

    :param own: True: the communicator was made for this job, so ``leave`` frees it.
    """

    def __init__(self, comm: MPI.Intracomm, own: bool) -> None:
        self.rank, self.size = comm.rank, comm.size
        self.comm, self._own = comm, own

    def init(self) -> None:
        limit = limits.limit_of(limits.INIT) or float("inf")
        message = f"hvdlite: rank {self.rank} ends the job: ranks are missing after {limit:.0f} s\n"
        with limited(limit, 1, message):  # normally short, because all ranks are in init()
            call(lib.hvd_init, by_mpi(self.comm))

    def numbers(self, number: int) -> List[int]:
        # An array, not pickled values: after a death, only a part of a pickle may arrive.
        all_numbers = array("i", [0] * self.size)
        self.comm.Allgather(array("i", [number]), all_numbers)
        return all_numbers.tolist()

    def allgather(self, value: Any) -> List[Any]:
        return self.comm.allgather(value)

    def barrier(self) -> None:
        entered = self.comm.Ibarrier()
        while not entered.Test():
            os.sched_yield()

    def send(self, value: Any, rank: int) -> None:
        self.comm.send(value, dest=rank, tag=_VALUE)

    def receive(self, rank: int) -> Any:
        return self.comm.recv(source=rank, tag=_VALUE)

    def open(self, ranks: List[int]) -> Optional[int]:
        with self._limited_opening(range(self.size)):
            if self.rank in ranks:
                return _opened(self.comm.Split(0, ranks.index(self.rank)), ranks)
            self.comm.Split(MPI.UNDEFINED)
            return None

    def open_among(self, ranks: List[int], number: int) -> int:
        with self._limited_opening(ranks):
            most = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) or 32767
            tag = number % (most + 1)  # a tag for each group, because two groups may open together
            return _opened(self.comm.Create_group(self.comm.group.Incl(ranks), tag), ranks)

    def _limited_opening(self, ranks: Sequence[int]) -> ContextManager[None]:
        """Limit the block's time, because MPI waits forever for a rank that is stopped."""
        message = f"\nhvdlite: rank {self.rank} ends the job: MPI waits for that rank forever\n"
        return limited(limits.limit_of(limits.EXIT), 1, message, list(ranks))

    def check_groups(self) -> None:
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            raise HvdliteError(
                "process sets need an MPI that allows calls from several threads: set "
                "mpi4py.rc.thread_level = 'multiple' before mpi4py.MPI is imported"
            )

    def members(self) -> MPI.Group:
        return self.comm.group

    def ranks_of(self, members: MPI.Group) -> Sequence[Optional[int]]:
        ranks = MPI.Group.Translate_ranks(members, None, self.comm.group)
        return [None if rank == MPI.UNDEFINED else rank for rank in ranks]

    def leave(self, sound: bool) -> None:
        if self._own and sound:
            self.comm.Free()


def _opened(comm: MPI.Comm, ranks: List[int]) -> int:
    group = ffi.new("int *")
    call(lib.hvd_group_open, by_mpi(comm), ranks, group)
    comm.Free()  # the C library has its own duplicates
    return group[0]
