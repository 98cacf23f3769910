"""How the processes that MPI has started meet in init()."""

import time
from typing import Any, Sequence

from hvdlite.bootstrap.arrivals import Arrivals, ended_without
from hvdlite.bootstrap.mpi.loading import MPI
from hvdlite.bootstrap.mpi.world import MPIWorld

# A rank that waits in init() reports its arrival. In a job of at most _FEW ranks it tells all
# ranks after SOON_SECONDS; in a larger job it tells rank 0 then, and all ranks after ASK_SECONDS.
SOON_SECONDS, ASK_SECONDS = 3.0, 60.0
_FEW = 64  # chosen; with more ranks, messages from all to all would delay the start
ANSWER_SECONDS = 2.0  # seconds until those messages have arrived, on a busy host, too; chosen
# Tags of messages. Every MPI has tags up to 32,767; world.py uses the next lower one.
_ENDED = 32_767  # a rank has ended without calling init()
_ARRIVED = 32_766


def size() -> int:
    """Return the number of processes that were started together."""
    return MPI.COMM_WORLD.size


def rank() -> int:
    """Return this process's number among those that were started together."""
    return MPI.COMM_WORLD.rank


def is_alone(comm) -> bool:
    """Return True if MPI knows no other process, in COMM_WORLD or in the user's communicator."""
    connected = isinstance(comm, MPI.Comm) and comm != MPI.COMM_NULL and comm.size > 1
    return size() == 1 and not connected


def report_end() -> None:
    """Tell ranks that wait in init(), now or soon, that this process ends without init()."""
    for other in range(size()):
        if other != rank():
            MPI.COMM_WORLD.Isend([None, 0, MPI.BYTE], other, _ENDED).Free()


def meet(ranks_or_comm, patience: float) -> MPIWorld:
    """Wait for the ranks of the user's list or communicator; None: all ranks.

    The user may free the communicator afterwards.
    """
    if ranks_or_comm is None:
        return MPIWorld(_wait_for_all(MPI.COMM_WORLD, patience), own=False)
    if not isinstance(ranks_or_comm, MPI.Comm):
        return MPIWorld(_wait_for_all(_comm_of_ranks(ranks_or_comm), patience), own=True)
    if ranks_or_comm == MPI.COMM_NULL:
        raise ValueError(
            f"init({ranks_or_comm!r}): this process (rank {rank()}) is not in the communicator"
        )
    return MPIWorld(_wait_for_all(ranks_or_comm, patience).Dup(), own=True)


def _comm_of_ranks(ranks: Sequence[int]) -> MPI.Intracomm:
    ranks = list(ranks)
    if not ranks or len(set(ranks)) < len(ranks) or not all(0 <= r < size() for r in ranks):
        raise ValueError(f"init({ranks}): expected different ranks from 0 to {size() - 1}")
    if rank() not in ranks:
        raise ValueError(f"init({ranks}): this process is rank {rank()}, which the list leaves out")
    return MPI.COMM_WORLD.Create_group(MPI.COMM_WORLD.group.Incl(ranks))


def _wait_for_all(comm: Any, patience: float) -> Any:
    """Wait until all ranks of ``comm`` are in init(); return ``comm``.

    :raises HvdliteError: a rank has ended without calling init(). MPI would wait for it forever.
    """
    barrier, status = comm.Ibarrier(), MPI.Status()
    messages = ArrivalMessages(comm, patience)
    while not barrier.Test():
        messages.look()
        if MPI.COMM_WORLD.Iprobe(MPI.ANY_SOURCE, _ENDED, status):
            ended = status.source
            (of_comm,) = MPI.COMM_WORLD.group.Translate_ranks([ended], comm.group)
            if of_comm != MPI.UNDEFINED:
                raise ended_without(ended)
            MPI.COMM_WORLD.Recv([None, 0, MPI.BYTE], ended, _ENDED)
        time.sleep(0.001)  # Ctrl-C can interrupt this wait
    messages.receive()
    return comm


class ArrivalMessages:
    """Messages that tell a rank that waits long which ranks are in init()."""

    def __init__(self, comm: MPI.Intracomm, limit: float) -> None:
        self._comm = comm
        few = comm.size <= _FEW
        soon, late = (min(limit or wait, wait) for wait in (SOON_SECONDS, ASK_SECONDS))
        warn = (soon if few or comm.rank == 0 else late) + ANSWER_SECONDS
        self._arrivals = Arrivals(comm.rank, comm.size, warn, limit)
        began, everyone = self._arrivals.began, range(comm.size)
        self._due = [(began + soon, everyone if few else range(1))]
        self._due += [] if few else [(began + late, everyone)]

    def look(self) -> None:
        if self._due and time.monotonic() >= self._due[0][0]:
            for other in self._due.pop(0)[1]:
                if other != self._comm.rank:
                    self._comm.Isend([None, 0, MPI.BYTE], other, _ARRIVED).Free()
        self.receive()
        self._arrivals.look()

    def receive(self) -> None:
        """Receive the other ranks' messages, so that none stays in the user's communicator."""
        status = MPI.Status()
        while self._comm.Iprobe(MPI.ANY_SOURCE, _ARRIVED, status):
            self._comm.Recv([None, 0, MPI.BYTE], status.source, _ARRIVED)
            self._arrivals.arrived.add(status.source)
