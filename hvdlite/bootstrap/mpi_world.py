"""A job over MPI: how its processes meet, and how they exchange values."""

import os
import time
from typing import Any, Callable, ContextManager, List, Optional, Sequence

import numpy as np

from hvdlite.bootstrap import mpi_life, singleton_check
from hvdlite.bootstrap.arrivals import Arrivals, ended_without
from hvdlite.bootstrap.bootstrap import Bootstrap
from hvdlite.bootstrap.mpi import MPI, by_mpi
from hvdlite.core import limits, start
from hvdlite.core.agent_protocol import ELASTIC
from hvdlite.core.membership import Membership
from hvdlite.core.native import HvdliteError, call, ffi, lib
from hvdlite.core.world import World
from hvdlite.exit import orphan

# A rank that waits in init() reports that it is there. In a job of at most _FEW ranks it tells all
# ranks after SOON_SECONDS; in a larger job it tells rank 0 then, and all ranks after ASK_SECONDS.
SOON_SECONDS, ASK_SECONDS = 3.0, 60.0
_FEW = 64
ANSWER_SECONDS = 2.0
# Tags of messages. Every MPI has tags up to 32,767.
_ENDED = 32_767  # a rank has ended without calling init()
_HERE = 32_766
_VALUE = 32_765


class MPIWorld(World):
    """The ranks of a communicator; see :class:`World`.

    :param own: True: the communicator was made for this job, so ``leave`` frees it.
    """

    def __init__(self, comm: MPI.Intracomm, own: bool) -> None:
        self.rank, self.size = comm.rank, comm.size
        self.comm, self._own = comm, own

    def init(self) -> None:
        limit = limits.limit_of(limits.INIT) or float("inf")
        how = f"hvdlite: rank {self.rank} ends the job: ranks are missing after {limit:.0f} s\n"
        with mpi_life.limited(limit, 1, how):  # normally short, because all ranks are in init()
            call(lib.hvd_init, by_mpi(self.comm))

    def numbers(self, number: int) -> List[int]:
        # An array, not pickled values: after a death, only a part of a pickle may arrive.
        all_numbers = np.zeros(self.size, np.intc)
        self.comm.Allgather(np.array([number], np.intc), all_numbers)
        return all_numbers.tolist()

    def allgather(self, value: Any) -> List[Any]:
        return self.comm.allgather(value)

    def barrier(self) -> None:
        all_here = self.comm.Ibarrier()
        while not all_here.Test():
            os.sched_yield()

    def send(self, value: Any, rank: int) -> None:
        self.comm.send(value, dest=rank, tag=_VALUE)

    def receive(self, rank: int) -> Any:
        return self.comm.recv(source=rank, tag=_VALUE)

    def open(self, ranks: List[int]) -> Optional[int]:
        with self._opens(range(self.size)):
            if self.rank in ranks:
                return _opened(self.comm.Split(0, ranks.index(self.rank)), ranks)
            self.comm.Split(MPI.UNDEFINED)
            return None

    def open_among(self, ranks: List[int], number: int) -> int:
        with self._opens(ranks):
            most = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) or 32767
            tag = number % (most + 1)  # a tag for each group, because two groups may open together
            return _opened(self.comm.Create_group(self.comm.group.Incl(ranks), tag), ranks)

    def _opens(self, ranks: Sequence[int]) -> ContextManager[None]:
        """Limit the block's time, because MPI waits forever for a rank that is stopped."""
        how = f"\nhvdlite: rank {self.rank} ends the job: MPI waits for that rank forever\n"
        return mpi_life.limited(limits.limit_of(limits.EXIT), 1, how, list(ranks))

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


class MPIBootstrap(Bootstrap):
    """The bootstrap of processes that a launcher of MPI, or a script with mpi4py, has started."""

    transport = "mpi"

    def begin(self, comm: Any) -> None:
        mpi_life.begin()
        if _is_alone(comm):
            mpi = MPI.Get_library_version().split(",")[0].splitlines()[0]
            singleton_check.refuse_if_one_of_several(f"{mpi} knows of no other process")
        if os.environ.get(ELASTIC) == "1":
            refuse_elastic()
        if MPI.COMM_WORLD.size > 1:
            orphan.watch()

    def join(
        self, comm: Any, patience: float, members: Membership, enter: Callable[[World], None]
    ) -> None:
        if comm is not None:
            enter(_meet(comm, patience))
        else:
            enter(MPIWorld(_all_here(MPI.COMM_WORLD, patience), own=False))

    def before_end(self, leave: Callable[[], None]) -> None:
        mpi_life.before_finalize(leave)

    def has_others(self) -> bool:
        return mpi_life.is_running() and MPI.COMM_WORLD.size > 1

    def rank(self) -> int:
        return MPI.COMM_WORLD.rank

    def report_end(self) -> None:
        # sent to all ranks, but only ranks in init() look for this message
        for other in range(MPI.COMM_WORLD.size):
            if other != MPI.COMM_WORLD.rank:
                MPI.COMM_WORLD.Isend([None, 0, MPI.BYTE], other, _ENDED).Free()

    def end_by(self, until: float, code: int, words: str) -> None:
        mpi_life.end_by(until, code, words)

    def end_all(self, code: int, patience: float) -> None:
        MPI.COMM_WORLD.Abort(code)


class MPIMembership(Membership):
    """The processes that MPI has started. If one dies, MPI ends all of them.

    So hvd.elastic.run works only in a job of one process.
    """

    def begin(self, world: World) -> None:
        refuse_elastic()


def refuse_elastic() -> None:
    """Raise HvdliteError if a launcher of MPI has started this process.

    When a rank dies, MPI ends the others. A process without a launcher is the only rank, and may
    use elastic training.
    """
    if start.is_by_mpi() or MPI.COMM_WORLD.size > 1:
        raise HvdliteError(
            "elastic training does not run over MPI, which has started this process: start the "
            f"job by `hvdliterun --elastic -n {MPI.COMM_WORLD.size} python train.py`"
        )


def _is_alone(comm) -> bool:
    """Return True if MPI knows no other process, in COMM_WORLD or in the user's communicator."""
    connected = isinstance(comm, MPI.Comm) and comm != MPI.COMM_NULL and comm.size > 1
    return MPI.COMM_WORLD.size == 1 and not connected


def _meet(given, patience: float) -> MPIWorld:
    """Meet the ranks of the user's list or communicator, which the user may free afterwards."""
    is_list = not isinstance(given, MPI.Comm)
    if is_list:
        return MPIWorld(_all_here(_comm_of_ranks(given), patience), own=True)
    if given == MPI.COMM_NULL:
        raise ValueError(
            f"init({given!r}): this process (rank {MPI.COMM_WORLD.rank}) is not in the communicator"
        )
    return MPIWorld(_all_here(given, patience).Dup(), own=True)


def _comm_of_ranks(ranks: Sequence[int]) -> MPI.Intracomm:
    ranks, size = list(ranks), MPI.COMM_WORLD.size
    if not ranks or len(set(ranks)) < len(ranks) or not all(0 <= r < size for r in ranks):
        raise ValueError(f"init({ranks}): expected different ranks from 0 to {size - 1}")
    if MPI.COMM_WORLD.rank not in ranks:
        raise ValueError(
            f"init({ranks}): this process is rank {MPI.COMM_WORLD.rank}, which the list leaves out"
        )
    return MPI.COMM_WORLD.Create_group(MPI.COMM_WORLD.group.Incl(ranks))


def _all_here(comm: MPI.Intracomm, patience: float) -> MPI.Intracomm:
    """Wait until all ranks of ``comm`` are in init(); return ``comm``.

    :raises HvdliteError: a rank has ended without calling init(). MPI would wait for it forever.
    """
    here, status = comm.Ibarrier(), MPI.Status()
    asked = _Asked(comm, patience)
    while not here.Test():
        asked.look()
        if MPI.COMM_WORLD.Iprobe(MPI.ANY_SOURCE, _ENDED, status):
            ended = status.source
            (of_comm,) = MPI.COMM_WORLD.group.Translate_ranks([ended], comm.group)
            if of_comm != MPI.UNDEFINED:
                raise ended_without(ended)
            MPI.COMM_WORLD.Recv([None, 0, MPI.BYTE], ended, _ENDED)
        time.sleep(0.001)  # Ctrl-C can interrupt this wait
    asked.take()
    return comm


class _Asked:
    """Learns from messages which ranks are in init(); each rank sends messages if it waits long."""

    def __init__(self, comm: MPI.Intracomm, limit: float) -> None:
        self._comm = comm
        few = comm.size <= _FEW
        soon, late = (min(limit or wait, wait) for wait in (SOON_SECONDS, ASK_SECONDS))
        warn = (soon if few or comm.rank == 0 else late) + ANSWER_SECONDS
        self._arrivals = Arrivals(comm.rank, comm.size, warn, limit)
        began, everyone = self._arrivals.began, range(comm.size)
        self._asks = [(began + soon, everyone if few else range(1))]
        self._asks += [] if few else [(began + late, everyone)]

    def look(self) -> None:
        if self._asks and time.monotonic() >= self._asks[0][0]:
            for other in self._asks.pop(0)[1]:
                if other != self._comm.rank:
                    self._comm.Isend([None, 0, MPI.BYTE], other, _HERE).Free()
        self.take()
        self._arrivals.look()

    def take(self) -> None:
        """Receive the other ranks' messages, so that none stays in the user's communicator."""
        status = MPI.Status()
        while self._comm.Iprobe(MPI.ANY_SOURCE, _HERE, status):
            self._comm.Recv([None, 0, MPI.BYTE], status.source, _HERE)
            self._arrivals.here.add(status.source)
