"""A job without MPI: how its ranks meet, and how they exchange values.

All ranks connect to rank 0's port (``exchange``), then to each other (``mesh``). The C library gets
the connections of the mesh. The exchange stays open, for the values that a World exchanges. Each
port is closed when all expected ranks have connected.
"""

import contextlib
import itertools
import math
import os
import socket
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Set

from hvdlite.bootstrap import exchange, mesh, singleton_check
from hvdlite.bootstrap.bootstrap import Bootstrap
from hvdlite.bootstrap.host_watch import HostWatch
from hvdlite.core import agent_protocol, member, places, start, topology
from hvdlite.core.launchers import TORCHELASTIC
from hvdlite.core.limits import ELASTIC_LIMIT
from hvdlite.core.log import logger
from hvdlite.core.membership import Meeting, Membership
from hvdlite.core.module_state import ModuleState
from hvdlite.core.native import HvdliteError, call, ffi, lib
from hvdlite.core.world import World
from hvdlite.exit import forks, orphan
from hvdlite.machine.processes import stat_of

# A process that ends without calling init() tries to tell the ranks that wait in init(). All ranks
# started together, so the process tries for as long as it has run, within these limits in seconds:
ENDED_SECONDS = (1.0, 10.0)
# Ranks that are started together call init() within this time. If no launcher would end the ranks,
# a failed rank stays for this time to tell the ranks that connect.
START_SECONDS = 60.0


class _Present(ModuleState):
    """Keeps the SocketWorld of the job that this process has joined."""

    def begin(self) -> None:
        self.world: Optional[SocketWorld] = None

    def begin_child(self) -> None:
        if self.world is not None:
            self.world.close_in_child()


_present = _Present()


def _by_torchrun() -> bool:
    return TORCHELASTIC in os.environ


def _age() -> float:
    """Return for how many seconds this process has run."""
    began = stat_of("/proc/self/stat")[19]
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(began) / os.sysconf("SC_CLK_TCK")


def _place() -> places.Place:
    found = start.without_mpi()
    assert found is not None  # without a place, the job starts over MPI
    return found


class SocketWorld(World):
    """The ranks that have met at rank 0's port; see :class:`World`.

    :param numbers: the number of each rank. When ranks die, the others keep their numbers.
    :param patience: seconds in which this rank must connect to all other ranks.
    """

    def __init__(
        self,
        met: exchange.Exchange,
        numbers: Optional[List[int]] = None,
        patience: float = math.inf,
    ) -> None:
        self.rank, self.size = met.rank, met.size
        self._exchange, self._numbers = met, numbers or list(range(met.size))
        self._mesh: Optional[mesh.Mesh] = None
        self._patience = patience
        self.watch: Optional[HostWatch] = None
        self._opened = 0
        # Duplicates of the streams. Until hvd_init_sockets returns, hvd_lose_host blocks, so _lose
        # shuts these down to end waits for a lost host.
        self._joining: Dict[int, List[socket.socket]] = {}

    def init(self) -> None:
        _present.world = self
        self._mesh = mesh.connect(self._exchange, self._patience)
        self._joining = mesh.doubles(self._mesh)
        self.watch = HostWatch(self.rank, self._mesh, self._lose)
        self._mesh = self._mesh._replace(watch=[])
        arrays = [ffi.new("int[]", each) for each in self._mesh[:3]]
        try:
            call(lib.hvd_init_sockets, ffi.new("hvd_sockets *", [self.rank, self.size, *arrays]))
        finally:
            # the C library now owns these descriptors and closes them, also in a child
            self._mesh = self._mesh._replace(data=[], messages=[])
            self._close_doubles()

    def _lose(self, host: str, ranks: Set[int]) -> None:
        for rank in ranks:
            for stream in self._joining.get(rank, ()):
                with contextlib.suppress(OSError):  # the stream is shut down already
                    stream.shutdown(socket.SHUT_RDWR)
        lib.hvd_lose_host(host.encode())  # blocks until hvd_init_sockets has returned
        self._exchange.lose(ranks)

    def _close_doubles(self) -> None:
        joining, self._joining = self._joining, {}
        for stream in itertools.chain(*joining.values()):
            stream.close()

    def allgather(self, value: Any) -> List[Any]:
        return self._exchange.allgather(value)

    def send(self, value: Any, rank: int) -> None:
        self._exchange.send(value, rank)

    def receive(self, rank: int) -> Any:
        return self._exchange.receive(rank)

    def open(self, ranks: List[int]) -> Optional[int]:
        self._opened += 1
        return _open_group(ranks, 2 * self._opened) if self.rank in ranks else None

    def open_among(self, ranks: List[int], number: int) -> int:
        return _open_group(ranks, 2 * (number * self.size + ranks[0]) + 1)

    def members(self) -> List[int]:
        return self._numbers

    def ranks_of(self, members: Any) -> Sequence[Optional[int]]:
        if not isinstance(members, list):
            raise HvdliteError(start.NEEDS_MPI.format("a process set of a communicator"))
        ranks = {number: rank for rank, number in enumerate(self._numbers)}
        return [ranks.get(number) for number in members]

    def address(self) -> str:
        """Return the address at which the other ranks reach this rank."""
        assert self._mesh
        return self._mesh.address

    def looking(self) -> Callable[[], None]:
        """Return a function that raises if a rank has ended, for loops that wait for ranks."""
        wait = self._exchange.waiting()
        wait.arrived.update(range(self.size))

        def look() -> None:
            self._exchange.look()
            wait.look()

        return look

    def unreached(self) -> Set[int]:
        """Return the numbers of the ranks that this rank could not reach."""
        return {self._numbers[rank] for rank in self._exchange.unreached}

    def key(self) -> bytes:
        """Return the key that the job's handshakes use."""
        return self._exchange.key

    def leave(self, sound: bool) -> None:
        if self.watch is not None:
            self.watch.close()
        self._exchange.close()
        self._mesh = None
        _present.world = None

    def tell_of(self, error: BaseException) -> None:
        """On rank 0: if this error is a failure of the job, make the other ranks raise it."""
        if isinstance(error, HvdliteError) and not self.rank:
            self._exchange.tell_of(error)

    def close_in_child(self) -> None:
        """In a forked child: close all connections; otherwise they would outlive the parent."""
        if self._mesh is not None:
            mesh.close(self._mesh)
        self._close_doubles()
        self.leave(False)


def _open_group(ranks: List[int], number: int) -> int:
    group = ffi.new("int *")
    call(lib.hvd_group_open_among, ranks, len(ranks), number, group)
    return group[0]


forks.keep_out()


class SocketBootstrap(Bootstrap):
    """The bootstrap of processes that know their ranks and rank 0's address from a launcher."""

    transport = "tcp"

    def __init__(self) -> None:
        self._joined = 0  # number of jobs that this process has joined at this place
        self._at: Optional[places.Place] = None
        self._informed: Set[int] = set()  # ranks that know that this process ends, or have ended

    def begin(self, comm: Any) -> None:
        """:raises ValueError: ``comm`` is a communicator of MPI."""
        if comm is not None:
            raise ValueError(f"init({comm!r}): {start.NEEDS_MPI.format('a communicator')}")
        if forks.is_child():
            raise HvdliteError(
                "init(): this process was forked from a rank, and a child is not a rank: call "
                "hvdlite.init() in the process that the launcher has started"
            )
        if _place() == places.ALONE:
            singleton_check.refuse_if_one_of_several("nobody has told it where the others are")
        if _by_torchrun() or _place().launcher == "srun" or agent_protocol.by_an_agent():
            orphan.watch()

    def join(
        self, comm: Any, patience: float, members: Membership, enter: Callable[[World], None]
    ) -> None:
        if _place() != self._at:
            self._at, self._joined, self._informed = _place(), 0, set()
        meeting = members.next_meeting()
        if meeting:
            met = _make_exchange(meeting, patience)
            world = SocketWorld(met, meeting.numbers, meeting.patience)
        else:
            met = exchange.meet(_place(), self._joined, patience, self._informed)
            world = SocketWorld(met, members.first_numbers())
        self._joined += 1
        try:
            enter(world)
        except BaseException as error:
            if not topology.is_initialized():
                world.tell_of(error)
                world.leave(False)
            raise
        finally:
            members.note_unreached(world.unreached())

    def has_others(self) -> bool:
        place = _place()
        known = place.rank >= 0  # otherwise only MXNet's scheduler knows the rank
        return known and place.size > 1 and not forks.is_child() and not member.is_worker()

    def rank(self) -> int:
        return _place().rank

    def report_end(self) -> None:
        shortest, longest = ENDED_SECONDS
        self._tell(min(max(shortest, _age()), longest))

    def end_all(self, code: int, patience: float) -> None:
        # If this process has joined, the others see that its connections end. Under torchrun,
        # torchrun ends the others, so a failed first attempt to tell them is enough.
        if not self._joined and not self._tell(patience) and not _by_torchrun():
            more = START_SECONDS - patience
            text = "init(): rank %d has failed, and waits %.0f s to tell this to ranks that connect"
            logger.warning(text, _place().rank, more)
            self._tell(more)
        os._exit(code)

    def _tell(self, seconds: float) -> bool:
        return exchange.report_end(_place(), self._joined, seconds, self._informed)


def _make_exchange(meeting: Meeting, patience: float) -> exchange.Exchange:
    place = _place()._replace(rank=meeting.rank, size=len(meeting.numbers))
    return exchange.Exchange(
        place, meeting.key, meeting.epoch, patience, meeting.connections, ELASTIC_LIMIT
    )
