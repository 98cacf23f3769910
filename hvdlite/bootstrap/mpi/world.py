"""The world of a job over MPI: the ranks of a communicator."""

import contextlib
from typing import Any, ContextManager, Iterator, List, Optional, Sequence

from hvdlite.bootstrap.mpi.loading import by_mpi
from hvdlite.core import limits, mpi
from hvdlite.core.native import HvdliteError, call, ffi, lib
from hvdlite.core.world import World


class MPIWorld(mpi.Communicator, World):
    """The ranks of a communicator; see :class:`World`.

    :param own: True: the communicator was made for this job, so ``leave`` frees it.
    """

    def __init__(self, comm: Any, own: bool) -> None:
        super().__init__(comm)
        self._own = own

    def init(self) -> None:
        limit = limits.limit_of(limits.INIT) or float("inf")
        message = f"hvdlite: rank {self.rank} ends the job: ranks are missing after {limit:.0f} s\n"
        with limit_call(limit, 1, message):  # usually a short wait: all ranks are in init() already
            call(lib.hvd_init, by_mpi(self.comm))

    def open(self, ranks: List[int]) -> Optional[int]:
        with self._limit_opening(range(self.size)):
            comm = self.split(ranks)
            return None if mpi.is_null(comm) else _open_group(comm, ranks)

    def open_among(self, ranks: List[int], number: int) -> int:
        with self._limit_opening(ranks):
            return _open_group(self.create_among(ranks, number), ranks)

    def _limit_opening(self, ranks: Sequence[int]) -> ContextManager[None]:
        """Limit the block's time, because MPI waits forever for a rank that is stopped."""
        why = "MPI waits for a rank that does not answer"
        message = f"\nhvdlite: rank {self.rank} ends the job: {why}\n"
        return limit_call(limits.limit_of(limits.EXIT), 1, message, list(ranks))

    def check_groups(self) -> None:
        if not mpi.allows_threads():
            raise HvdliteError(
                "process sets need an MPI that allows calls from several threads: set "
                "mpi4py.rc.thread_level = 'multiple' before mpi4py.MPI is imported"
            )

    def ranks_in(self, comm: Any) -> Sequence[Optional[int]]:
        return self.ranks_of(mpi.Communicator(comm).members())

    def leave(self, sound: bool) -> None:
        if self._own and sound:
            self.free()


@contextlib.contextmanager
def limit_call(
    seconds: float, code: int, message: str, ranks: Sequence[int] = ()
) -> Iterator[None]:
    """Print the message and end the process if the block's MPI call takes more than ``seconds``.

    :param ranks: the ranks for which MPI waits; if given, the seconds count from the job's failure.
    """
    limit = ffi.NULL
    if seconds < float("inf"):
        limit = lib.hvd_limit_set(max(seconds, 0), ranks, len(ranks), code, message.encode())
    try:
        yield
    finally:
        lib.hvd_limit_lift(limit)


def _open_group(comm: Any, ranks: List[int]) -> int:
    group = ffi.new("int *")
    try:
        call(lib.hvd_group_open, by_mpi(comm), ranks, group)
    finally:
        mpi.Communicator(comm).free()  # the C library has its own duplicates
    return group[0]
