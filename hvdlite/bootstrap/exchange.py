"""Exchanges values between the ranks of a job without MPI, through rank 0."""

import contextlib
import errno
import ipaddress
import socket
from typing import Any, Dict, List, Set

from hvdlite.bootstrap.acceptor import RETRY_SECONDS, Acceptor, bound, listen, reach
from hvdlite.bootstrap.arrivals import Arrivals, ended, ended_without
from hvdlite.bootstrap.handshake import ENDED, EXCHANGE, Hello, key_of
from hvdlite.bootstrap.values import receive, send
from hvdlite.core import places
from hvdlite.core.limits import INIT, LIMIT, limit_of
from hvdlite.core.native import RANK_DEAD, STALLED, HvdliteError, RankFailedError

WARN_SECONDS = 5.0  # seconds until a waiting rank prints which ranks are missing; chosen
GRACE_SECONDS = 10.0  # other ranks wait longer than rank 0, whose error names the missing ranks


class Exchange:
    """Exchanges values between the ranks, through rank 0, as JSON.

    :param connections: on rank 0 to every other rank; on another rank to rank 0 only.
    :param joined: the number of jobs that this process was in before.
    :param patience: seconds to wait for a value; 0: no limit.
    :param limit: the variable that sets for how many seconds another host may be silent.
    """

    def __init__(
        self, place: places.Place, key: bytes, joined: int, patience: float,
        connections: Dict[int, socket.socket], limit: str = LIMIT,
    ) -> None:  # fmt: skip
        self.rank, self.size, self.key, self.joined = place.rank, place.size, key, joined
        self.patience, self.connections = patience, connections
        self.unreached: Set[int] = set()  # ranks that the mesh could not reach
        self._timeout = patience + (GRACE_SECONDS if self.rank else 0) if patience else None
        for connection in connections.values():
            connection.settimeout(self._timeout)
            bound(connection, limit_of(limit))

    def hello(self, purpose: int) -> Hello:
        return Hello(purpose, self.rank, self.size, self.joined)

    def waiting(self) -> Arrivals:
        """Return new Arrivals, for a wait for other ranks that begins now."""
        return _arrivals(self.rank, self.size, self.patience)

    def poll(self) -> None:
        """Raise if a connection shows that the job can't begin. Do not wait for data."""
        for rank, connection in self.connections.items():
            connection.setblocking(False)
            try:
                something = connection.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                continue
            except OSError:
                something = b""
            finally:
                connection.settimeout(self._timeout)
            if not something:
                raise ended(rank)
            # data that this rank has not asked for is an error from rank 0, which receive() raises
            if self.rank:
                self.receive(0)

    def allgather(self, value: Any) -> List[Any]:
        if self.rank:
            self.send(value, 0)
            return self.receive(0)
        try:
            values = [value, *(self.receive(rank) for rank in range(1, self.size))]
        except HvdliteError as error:
            self.tell_of(error)
            raise
        for rank in range(1, self.size):
            self.send(values, rank)
        return values

    def send(self, value: Any, rank: int) -> None:
        try:
            send(self.connections[rank], {"value": value})
        except OSError:
            raise ended(rank) from None

    def receive(self, rank: int) -> Any:
        try:
            answer = receive(self.connections[rank])
        except socket.timeout as error:
            # the kernel has ended the connection because the other host is silent
            if error.errno == errno.ETIMEDOUT:
                raise ended(rank) from None
            text = f"init(): rank {rank} has not answered for {self._timeout:g} s. "
            text += f"To wait longer, set {INIT}"
            raise HvdliteError(text, kind=STALLED, ranks=(rank,)) from None
        except OSError:
            raise ended(rank) from None
        if "error" in answer:
            ranks, kind = tuple(answer.get("ranks", ())), answer.get("kind")
            failed = RankFailedError if kind == RANK_DEAD else HvdliteError
            raise failed(answer["error"], kind=kind, ranks=ranks)
        return answer["value"]

    def tell_of(self, error: HvdliteError) -> None:
        """On rank 0: make the other ranks raise this error in their next exchange."""
        message = {"error": str(error), "kind": error.kind, "ranks": error.ranks}
        for connection in self.connections.values():
            try:
                send(connection, message)
            except OSError:
                continue

    def lose(self, ranks: Set[int]) -> None:
        """End all threads' waits for these ranks, because their hosts are lost."""
        for rank in ranks & self.connections.keys():
            with contextlib.suppress(OSError):  # the connection is shut down already
                self.connections[rank].shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for connection in self.connections.values():
            connection.close()
        self.connections = {}


def _arrivals(rank: int, size: int, patience: float) -> Arrivals:
    return Arrivals(rank, size, min(patience or WARN_SECONDS, WARN_SECONDS), patience)


def meet(place: places.Place, joined: int, patience: float, informed: Set[int]) -> Exchange:
    """Wait until all ranks are in init(), and connect rank 0 with each other rank.

    :param informed: ranks to which :func:`report_end` need not report this rank's end; this
        function adds ranks.
    :raises HvdliteError: ranks are missing after the limit, or a rank has ended.
    """
    key = key_of(place.job)
    hello = Hello(EXCHANGE, place.rank, place.size, joined)
    wait = _arrivals(place.rank, place.size, patience)
    if place.size == 1:
        return Exchange(place, key, joined, patience, {})
    try:
        if not place.rank:
            connections = _receive_all(place, hello, key, wait, informed)
            return Exchange(place, key, joined, patience, connections)
        wait.arrived = set(range(1, place.size))
        connection, other = reach(place.host, place.ports, hello, key, wait.poll)
    except HvdliteError:
        if wait.over:  # so that report_end() does not wait for the missing ranks again
            informed.update(range(place.size))
        raise
    informed.add(0)
    if other.purpose == ENDED:
        connection.close()
        raise ended_without(0)
    return Exchange(place, key, joined, patience, {0: connection})


def _receive_all(
    place: places.Place, hello: Hello, key: bytes, wait: Arrivals, informed: Set[int]
) -> Dict[int, socket.socket]:
    expected = {(EXCHANGE, rank) for rank in range(1, place.size)}

    def poll() -> None:
        wait.arrived.update(rank for _, rank in acceptor.peers)
        wait.poll()

    acceptor = Acceptor(_rank0_listener(place), hello, key, expected, poll)
    try:
        peers = acceptor.wait()
    except BaseException as error:
        connections = {rank: connection for (_, rank), connection in acceptor.peers.items()}
        rest = Exchange(place, key, 0, 0, connections)
        if isinstance(error, HvdliteError):
            rest.tell_of(error)
            informed.update(connections, error.ranks)
        rest.close()
        raise
    return {rank: connection for (_, rank), connection in peers.items()}


def _rank0_listener(place: places.Place) -> socket.socket:
    """Return rank 0's listener, at the address that the launcher gave all ranks."""
    try:
        entries = socket.getaddrinfo(place.host, None, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(each[4][0]) for each in entries))
    except OSError as error:
        raise HvdliteError(
            f"init(): rank 0 can't find the address of its host '{place.host}': {error}: give the "
            "launcher a name or address that rank 0's host knows"
        ) from error
    loops = all(ipaddress.ip_address(each.partition("%")[0]).is_loopback for each in addresses)
    if loops and place.host not in ("localhost", *addresses):
        addresses = []  # listen at all addresses: other hosts can't reach a loopback address
    try:
        return listen([*addresses, "0.0.0.0"], place.ports)
    except OSError as error:
        ports = f"{place.ports[0]}" + (f" to {place.ports[-1]}" if place.ports[1:] else "")
        raise HvdliteError(
            f"init(): rank 0 can't listen at {place.host}, port {ports}: {error}. "
            f"Set {places.PORT}, on all ranks, to a free port"
        ) from error


def report_end(place: places.Place, joined: int, seconds: float, informed: Set[int]) -> bool:
    """Tell ranks that wait in init(), now or within these seconds, that this process ends.

    Rank 0 tells all others. Another rank tells rank 0, and rank 0 tells the ranks that wait.

    :param informed: ranks that need not be told; this function adds the ranks that it told.
    :return: True if all ranks know that this process ends.
    """
    hello, key = Hello(ENDED, place.rank, place.size, joined), key_of(place.job)
    seconds = max(seconds, RETRY_SECONDS[0])  # 0 means no limit in Arrivals
    ends = Arrivals(place.rank, place.size, seconds, seconds)
    try:
        if not place.rank:
            expected = {(EXCHANGE, rank) for rank in range(1, place.size) if rank not in informed}
            acceptor = Acceptor(_rank0_listener(place), hello, key, expected, ends.poll)
            try:
                acceptor.wait()
            finally:
                informed.update(rank for _, rank in acceptor.peers)
        elif 0 not in informed:
            reach(place.host, place.ports, hello, key, ends.poll)[0].close()
            informed.add(0)
    except (HvdliteError, OSError, ValueError):
        return False
    return True
