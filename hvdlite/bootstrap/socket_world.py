"""The world of a job without MPI: the ranks that have met at rank 0's port.

All ranks connect to rank 0's port (``exchange``), then to each other (``mesh``). The C library gets
the connections of the mesh. The exchange stays open, for the values that a World exchanges. Each
port is closed when all expected ranks have connected.
"""

import contextlib
import itertools
import math
import socket
from typing import Any, Callable, Dict, List, Optional, Sequence, Set

from hvdlite.bootstrap import exchange, mesh
from hvdlite.bootstrap.host_watch import HostWatch
from hvdlite.core import start
from hvdlite.core.module_state import ModuleState
from hvdlite.core.native import HvdliteError, call, ffi, lib
from hvdlite.core.world import World
from hvdlite.exit import forks


class _Present(ModuleState):
    def begin(self) -> None:
        self.world: Optional[SocketWorld] = None

    def begin_child(self) -> None:
        if self.world is not None:
            self.world.close_in_child()


_present = _Present()


class SocketWorld(World):
    """The ranks that have met at rank 0's port; see :class:`World`.

    :param numbers: the number of each rank. When ranks die, the others keep their numbers.
    :param patience: seconds in which this rank must connect to all other ranks.
    """

    def __init__(
        self, met: exchange.Exchange, numbers: Optional[List[int]] = None,
        patience: float = math.inf,
    ) -> None:  # fmt: skip
        self.rank, self.size = met.rank, met.size
        self._exchange, self._numbers = met, numbers or list(range(met.size))
        self._mesh: Optional[mesh.Mesh] = None
        self._patience = patience
        self.watch: Optional[HostWatch] = None
        self._opened = 0
        # The streams, until hvd_init returns and the C library has duplicates. hvd_lose_host blocks
        # until then, so _lose() first shuts these streams down, to end waits for a lost host.
        self._joining: Dict[int, List[socket.socket]] = {}

    def init(self) -> None:
        _present.world = self
        self._mesh = made = mesh.connect(self._exchange, self._patience)
        # each descriptor has one owner at any time, because another thread may fork
        self._joining, self._mesh = mesh.streams(made), made._replace(data=[], messages=[])
        self.watch = HostWatch(self.rank, made, self._lose)
        self._mesh = self._mesh._replace(watch=[])
        arrays = [ffi.new("int[]", each) for each in made[:3]]
        sockets = ffi.new("hvd_sockets *", [self.rank, self.size, *arrays])
        try:
            call(lib.hvd_init, _transport(sockets))
        finally:
            self._close_joining()

    def _lose(self, host: str, ranks: Set[int]) -> None:
        for rank in ranks:
            for stream in self._joining.get(rank, ()):
                with contextlib.suppress(OSError):  # the stream is shut down already
                    stream.shutdown(socket.SHUT_RDWR)
        lib.hvd_lose_host(host.encode())  # blocks until hvd_init has returned
        self._exchange.lose(ranks)

    def _close_joining(self) -> None:
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
        ranks = {number: rank for rank, number in enumerate(self._numbers)}
        return [ranks.get(number) for number in members]

    def ranks_in(self, comm: Any) -> Sequence[Optional[int]]:
        raise HvdliteError(start.NEEDS_MPI.format("a process set of a communicator"))

    def address(self) -> str:
        """Return the address at which the other ranks reach this rank."""
        assert self._mesh
        return self._mesh.address

    def life_check(self) -> Callable[[], None]:
        """Return a function that raises if a rank has ended, for loops that wait for ranks."""
        wait = self._exchange.waiting()
        wait.arrived.update(range(self.size))

        def poll() -> None:
            self._exchange.poll()
            wait.poll()

        return poll

    def unreached(self) -> Set[int]:
        """Return the numbers of the ranks that this rank could not reach."""
        return {self._numbers[rank] for rank in self._exchange.unreached}

    def key(self) -> bytes:
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
        """In a forked child: close all connections, so that none outlives the parent."""
        if self._mesh is not None:
            mesh.close(self._mesh)
        self._close_joining()
        self.leave(False)


def _transport(where: Any) -> Any:
    """Return a C ``hvd_transport *``. The caller keeps ``where`` alive."""
    return ffi.new("hvd_transport *", (ffi.addressof(lib, "transport_tcp_open"), where))


def _open_group(ranks: List[int], number: int) -> int:
    group, where = ffi.new("int *"), ffi.new("hvd_socket_group *", (len(ranks), number))
    call(lib.hvd_group_open, _transport(where), ranks, group)
    return group[0]


forks.keep_out()
