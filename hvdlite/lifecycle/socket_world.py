"""A job of processes that no MPI joins: how they meet, and what they tell each other.

The names are those of ``mpi_world``. All ranks meet at rank 0's port (``star``), then connect each
to each (``mesh``); the C library gets these connections. The star stays, for what a World has to
tell. Each port is closed when all that were expected on it have come.
"""

import contextlib
import itertools
import math
import os
import socket
from typing import Any, Callable, Dict, List, Optional, Sequence, Set

from hvdlite.core import start, topology
from hvdlite.core.native import HvdliteError, call, ffi, lib
from hvdlite.core.world import World
from hvdlite.lifecycle import alone, forks, mesh, orphan, star, watched
from hvdlite.lifecycle import socket_members as members
from hvdlite.lifecycle.watch import Watch
from hvdlite.lifecycle.watched import ELASTIC

TRANSPORT = "tcp"
is_elastic = members.is_elastic
GONE_SECONDS = 1.0  # for telling those who wait in init() that this process ends without

_joined = 0  # jobs of this process
_present: List["SocketWorld"] = []  # of this process: one at most


def _place() -> start.Place:
    found = start.without_mpi()
    assert found is not None  # or mpi_world has the job
    return found


class SocketWorld:
    """The ranks that have met at rank 0's port; see :class:`World`.

    :param numbers: by rank; a rank keeps its number when others die.
    """

    def __init__(self, met: star.Star, numbers: Optional[List[int]] = None) -> None:
        self.rank, self.size = met.rank, met.size
        self._star, self._numbers = met, numbers or list(range(met.size))
        self._mesh: Optional[mesh.Mesh] = None
        self.watch: Optional[Watch] = None
        self._opened = 0
        self._joining: Dict[int, List[socket.socket]] = {}  # while the C library knows no dead

    def init(self) -> None:
        _present[:] = [self]
        patience = members.REACH_SECONDS if members.have_died() else math.inf
        try:
            self._mesh = mesh.connect(self._star, patience)
        finally:
            members.note_unreached({self._numbers[rank] for rank in self._star.unreached})
        self._joining = mesh.doubles(self._mesh)
        self.watch = Watch(self.rank, self._mesh, self._lose)
        self._mesh = self._mesh._replace(watch=[])
        arrays = [ffi.new("int[]", each) for each in self._mesh[:3]]
        try:
            call(lib.hvd_init_sockets, ffi.new("hvd_sockets *", [self.rank, self.size, *arrays]))
        finally:
            self._mesh = self._mesh._replace(data=[], messages=[])  # now C's, also in a child
            self._have_joined()
        if os.environ.get(ELASTIC) == "1" and not members.have_died():
            members.begin(self)

    def _lose(self, host: str, ranks: Set[int]) -> None:
        for rank in ranks:
            for stream in self._joining.get(rank, ()):
                with contextlib.suppress(OSError):  # it has been done
                    stream.shutdown(socket.SHUT_RDWR)
        lib.hvd_lose_host(host.encode())  # while the C library begins, it waits for that
        self._star.lose(ranks)

    def _have_joined(self) -> None:
        joining, self._joining = self._joining, {}
        for stream in itertools.chain(*joining.values()):
            stream.close()

    def numbers(self, number: int) -> List[int]:
        return self._star.allgather(number)

    def allgather(self, value: Any) -> List[Any]:
        return self._star.allgather(value)

    def barrier(self) -> None:
        self._star.allgather(None)

    def send(self, value: Any, rank: int) -> None:
        self._star.send(value, rank)

    def receive(self, rank: int) -> Any:
        return self._star.receive(rank)

    def open(self, ranks: List[int]) -> Optional[int]:
        self._opened += 1
        return _opened(ranks, 2 * self._opened) if self.rank in ranks else None

    def open_among(self, ranks: List[int], number: int) -> int:
        return _opened(ranks, 2 * (number * self.size + ranks[0]) + 1)

    def check_groups(self) -> None:
        """Return: they are always possible."""

    def members(self) -> List[int]:
        return self._numbers

    def ranks_of(self, members: Any) -> Sequence[Optional[int]]:
        if not isinstance(members, list):
            raise HvdliteError(start.NEEDS_MPI.format("a process set of a communicator"))
        ranks = {number: rank for rank, number in enumerate(self._numbers)}
        return [ranks.get(number) for number in members]

    def address(self) -> str:
        """Return where the other ranks reach this one."""
        assert self._mesh
        return self._mesh.address

    def looking(self) -> Callable[[], None]:
        """Return what raises, while this process waits for others, if one of them has ended."""
        wait = self._star.waiting()
        wait.here.update(range(self.size))

        def look() -> None:
            self._star.look()
            wait.look()

        return look

    def key(self) -> bytes:
        """Return what the job's handshakes prove to know."""
        return self._star.key

    def leave(self, sound: bool) -> None:
        if self.watch is not None:
            self.watch.close()
        self._star.close()
        self._mesh = None
        _present.clear()

    def tell_of(self, error: BaseException) -> None:
        """Have the others raise an error of rank 0, where it is one of the job."""
        if isinstance(error, HvdliteError) and not self.rank:
            self._star.tell_of(error)

    def let_go_in_a_child(self) -> None:
        """A child keeps no connection: by it the others would take this process for alive."""
        if self._mesh is not None:
            mesh.close(self._mesh)
        members.let_go()
        self._have_joined()
        self.leave(False)


def _opened(ranks: List[int], number: int) -> int:
    group = ffi.new("int *")
    call(lib.hvd_group_open_among, ranks, len(ranks), number, group)
    return group[0]


def _in_child() -> None:
    for world in list(_present):
        world.let_go_in_a_child()


os.register_at_fork(after_in_child=_in_child)
forks.keep_out()


def begin(comm) -> None:
    """Watch what this process depends on.

    :raises ValueError: ``comm`` is one of MPI's.
    :raises HvdliteError: this process can't be in a job, or is one of several and knows no others.
    """
    if comm is not None:
        raise ValueError(f"init({comm!r}): {start.NEEDS_MPI.format('a communicator')}")
    if forks.is_child():
        raise HvdliteError(
            "init(): this process was forked from a rank, and a child is none: call hvdlite.init() "
            "in the process that the launcher has started"
        )
    if _place() == start.ALONE:
        alone.refuse_if_one_of_several("nobody has told it where the others are")
    by_torchrun = "TORCHELASTIC_RUN_ID" in os.environ
    if by_torchrun or _place().launcher == "srun" or watched.by_an_agent():
        orphan.watch()


def join(comm, patience: float, enter: Callable[[World], None]) -> None:
    """Meet the other ranks, then call ``enter``; after deaths, those that are left."""
    global _joined
    if members.have_died():
        world = SocketWorld(members.next_star(_place(), patience), members.numbers())
    else:
        world = SocketWorld(star.meet(_place(), _joined, patience), members.first_numbers())
    _joined += 1
    try:
        enter(world)
        members.take(world)
    except BaseException as error:
        if not topology.is_initialized():
            world.tell_of(error)
            world.leave(False)
        raise


def before_end(leave: Callable[[], None]) -> None:
    """Do nothing: no script ends what joins these processes."""


def has_others() -> bool:
    """Tell whether other processes may wait for this one."""
    place = _place()
    known = place.rank >= 0  # or MXNet's scheduler would have to be asked
    return known and place.size > 1 and not forks.is_child() and not start.is_worker()


def rank() -> int:
    """Return this process's number among those that were started together."""
    return _place().rank


def report_gone() -> None:
    """Tell those who wait for this process in init() now, or soon."""
    star.report_gone(_place(), _joined, GONE_SECONDS)


def end_by(until: float, code: int, words: str) -> None:
    """Do nothing: this process's end waits for no other."""


def end_all(code: int, patience: float) -> None:
    """End this process; the others see that it is gone, or are told so within these seconds."""
    if not _joined:
        star.report_gone(_place(), _joined, patience)
    os._exit(code)
