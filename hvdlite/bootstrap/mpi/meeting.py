"""How the processes that MPI has started meet in init()."""

import time
from typing import Any, List

from hvdlite.bootstrap.arrivals import Arrivals, ended_without
from hvdlite.bootstrap.mpi.world import MPIWorld
from hvdlite.core import mpi

# A rank that waits in init() reports its arrival to all ranks after SOON_SECONDS. In a job of more
# than _FEW ranks it reports to rank 0 after SOON_SECONDS, and to all ranks after ASK_SECONDS.
SOON_SECONDS, ASK_SECONDS = 3.0, 60.0
_FEW = 64  # chosen; with more ranks, messages from all to all would delay the start
ANSWER_SECONDS = 2.0  # seconds allowed for the reports, even on a busy host; not measured


def is_alone(comm: Any) -> bool:
    """Return True if MPI knows no other process, in COMM_WORLD or in the user's communicator."""
    known = mpi.is_communicator(comm) and not mpi.is_null(comm)
    return mpi.ranks() == 1 and not (known and mpi.Communicator(comm).size > 1)


def report_end() -> None:
    """Tell ranks that wait in init(), now or soon, that this process ends without init()."""
    mpi.Communicator().signal(mpi.ENDED, range(mpi.ranks()))


def meet(ranks_or_comm: Any, patience: float) -> MPIWorld:
    """Wait for the ranks of the user's list or communicator; None: all ranks.

    The user may free the communicator afterwards.
    """
    if not mpi.is_communicator(ranks_or_comm):
        own = ranks_or_comm is not None
        met = mpi.Communicator(_create_comm(list(ranks_or_comm)) if own else None)
        _wait_for_all(met, patience)
        return MPIWorld(met.comm, own)
    if mpi.is_null(ranks_or_comm):
        raise ValueError(
            f"init({ranks_or_comm!r}): this process (rank {mpi.rank()}) is not in the communicator"
        )
    met = mpi.Communicator(ranks_or_comm)
    _wait_for_all(met, patience)
    return MPIWorld(met.duplicate(), own=True)


def _create_comm(ranks: List[int]) -> Any:
    own, size = mpi.rank(), mpi.ranks()
    if not ranks or len(set(ranks)) < len(ranks) or not all(0 <= r < size for r in ranks):
        raise ValueError(f"init({ranks}): expected distinct ranks, each from 0 to {size - 1}")
    if own not in ranks:
        raise ValueError(f"init({ranks}): this process is rank {own}, which the list leaves out")
    return mpi.Communicator().create_among(ranks)


def _wait_for_all(ranks: mpi.Communicator, patience: float) -> None:
    """Wait until all these ranks are in init().

    :raises HvdliteError: a rank has ended without calling init(), so MPI would wait forever.
    """
    have_all_arrived, everyone = ranks.begin_barrier(), mpi.Communicator()
    numbers = everyone.ranks_of(ranks.members())
    messages = ArrivalMessages(ranks, patience)
    while not have_all_arrived():
        messages.poll()
        for ended in everyone.receive_signals(mpi.ENDED):
            if ended in numbers:
                raise ended_without(ended)
        time.sleep(0.001)  # unlike a wait in MPI, Ctrl-C can interrupt this one
    messages.receive()


class ArrivalMessages:
    """Messages by which the ranks that wait in init() learn which ranks are in init()."""

    def __init__(self, ranks: mpi.Communicator, limit: float) -> None:
        self._ranks = ranks
        few = ranks.size <= _FEW
        soon, late = (min(limit or wait, wait) for wait in (SOON_SECONDS, ASK_SECONDS))
        warn = (soon if few or ranks.rank == 0 else late) + ANSWER_SECONDS
        self._arrivals = Arrivals(ranks.rank, ranks.size, warn, limit)
        began, everyone = self._arrivals.began, range(ranks.size)
        self._due = [(began + soon, everyone if few else range(1))]
        self._due += [] if few else [(began + late, everyone)]

    def poll(self) -> None:
        if self._due and time.monotonic() >= self._due[0][0]:
            self._ranks.signal(mpi.ARRIVED, self._due.pop(0)[1])
        self.receive()
        self._arrivals.poll()

    def receive(self) -> None:
        """Receive the other ranks' messages, so that none stays in the user's communicator."""
        self._arrivals.arrived.update(self._ranks.receive_signals(mpi.ARRIVED))
