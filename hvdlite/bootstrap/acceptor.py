"""Accepts connections of the ranks of a job without MPI, and of no other process.

An Acceptor serves a port, and closes the port when all expected ranks are connected. The log gets
at most MOST_LINES lines about refused connections.
"""

import contextlib
import errno
import os
import select
import selectors
import socket
import time
from typing import Any, Callable, Dict, Iterable, Iterator, List, Set, Tuple

from hvdlite.bootstrap.arrivals import ended, ended_without
from hvdlite.bootstrap.handshake import ENDED, EXCHANGE, Hello, PendingPeer, Stranger, introduce
from hvdlite.bootstrap.values import send
from hvdlite.core.log import logger

HANDSHAKE_SECONDS = 10.0  # seconds from accepting a connection to its proof of identity
CONNECT_SECONDS = 3.0  # limit of an attempt to connect, and of a send: a lost SYN takes 1 s; chosen
RETRY_SECONDS = (0.002, 0.5)  # pauses between attempts to connect: the first one, the longest one
# The acceptor keeps MOST_PENDING connections without a proof of identity, plus one for each
# expected rank. When another connection arrives, the acceptor closes the oldest of them.
MOST_PENDING = 64
MOST_LINES = 5  # limit on the lines in the log about connections that were turned away
NO_DESCRIPTORS_SECONDS = 0.02  # pause before the next accept() when no descriptor is left
LOOKS = 10  # number of keepalive probes to a silent host before the host counts as lost
SHORTEST_SECONDS = 2.0  # shortest limit, because the kernel probes at most once a second
_TCP_THIN_LINEAR_TIMEOUTS = 16  # value from linux/tcp.h
_MOST_PAUSE = 32767  # seconds: the kernel's MAX_TCP_KEEPIDLE

Peer = Tuple[int, int]  # purpose and rank of a connection whose peer has proved its identity


def listen(addresses: Iterable[str], ports: Iterable[int]) -> socket.socket:
    """Return a socket that listens at the first port that is free on one of the addresses.

    :raises OSError: no port is free.
    """
    failed: OSError = OSError("no address")
    for port in ports:
        for address in addresses:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            listener = socket.socket(family, socket.SOCK_STREAM)
            try:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind((address, port))
                listener.listen(socket.SOMAXCONN)
                listener.setblocking(False)
                return listener
            except OSError as error:
                failed = error
                listener.close()
    raise failed


class Acceptor:
    """Accepts the connections of processes that prove that they are ranks of the job.

    :param expected: the connections to wait for: pairs of a connection's purpose and a rank.
    :param poll: called a few times a second; an exception that ``poll`` raises ends the wait.
    """

    LOOK_SECONDS = 0.1

    def __init__(
        self, listener: socket.socket, own: Hello, key: bytes, expected: Set[Peer],
        poll: Callable[[], None],
    ):  # fmt: skip
        self.peers: Dict[Peer, socket.socket] = {}
        self._listener, self._own, self._key = listener, own, key
        self._expected, self._poll = expected, poll
        self._pending: Dict[socket.socket, PendingPeer] = {}
        self._turned_away = 0
        self._selector = selectors.DefaultSelector()

    def wait(self) -> Dict[Peer, socket.socket]:
        """Return the connections of the expected ranks when all of them have connected.

        :raises RankFailedError: a rank that had connected has ended.
        :raises HvdliteError: a rank's script has ended without calling init().
        """
        try:
            self._selector.register(self._listener, selectors.EVENT_READ)
            while self._expected - set(self.peers):
                self._poll()
                for key, _ in self._selector.select(self.LOOK_SECONDS):
                    self._serve(key.fileobj)
                self._end_the_slow()
        finally:
            self._close()
        return self.peers

    def _serve(self, connection) -> None:
        if connection is self._listener:
            self._admit()
        elif connection in self._pending:
            self._receive(self._pending[connection])
        elif connection in self.peers.values():  # otherwise an earlier event has closed it
            self._look_after(connection)

    def _admit(self) -> None:
        try:
            connection, _ = self._listener.accept()
        # the peer has closed the connection, or no descriptor is left for it
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                time.sleep(NO_DESCRIPTORS_SECONDS)
            return
        connection.setblocking(False)
        deadline = time.monotonic() + HANDSHAKE_SECONDS
        self._pending[connection] = PendingPeer(connection, self._own, self._key, deadline)
        self._selector.register(connection, selectors.EVENT_READ)
        if len(self._pending) > MOST_PENDING + len(self._expected):
            self._turn_away(next(iter(self._pending.values())), "too many peers connect at once")

    def _receive(self, pending: PendingPeer) -> None:
        try:
            hello = pending.receive()
            if hello:
                self._accept_peer(pending, hello)
        except BlockingIOError:
            pass
        except (Stranger, OSError) as error:
            self._turn_away(pending, str(error))

    def _accept_peer(self, pending: PendingPeer, hello: Hello) -> None:
        if hello.purpose == ENDED and self._own.purpose != ENDED:
            raise ended_without(hello.rank)
        if hello.purpose == ENDED:
            # this rank ends without calling init(), too, so the peer's end is no error
            hello = hello._replace(purpose=EXCHANGE)
        peer, why = (hello.purpose, hello.rank), ""
        if hello[2:] != self._own[2:]:
            job = "a job of {} ranks (init() number {}, version {})"
            theirs, own = job.format(*hello[2:]), job.format(*self._own[2:])
            why = f"rank {hello.rank} expects {theirs}, but this rank is in {own}: start all ranks "
            why += "by one launcher, or give all of them the same variables"
        elif peer not in self._expected or peer in self.peers:
            why = f"rank {hello.rank} is connected already, or is not expected here"
        if why:
            with contextlib.suppress(OSError):
                send(pending.connection, {"error": why})
            raise Stranger(why)
        del self._pending[pending.connection]
        self.peers[peer] = pending.connection

    def _look_after(self, connection: socket.socket) -> None:
        """Raise if the peer of a readable connection has ended; leave data to the next exchange."""
        # the handshake has told the peer that this rank ends; the peer's end does not matter
        if self._own.purpose == ENDED:
            self._selector.unregister(connection)
            return
        try:
            if connection.recv(1, socket.MSG_PEEK):
                self._selector.unregister(connection)
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        (peer,) = (peer for peer, known in self.peers.items() if known is connection)
        self._ended(peer)

    def _ended(self, peer: Peer) -> None:
        raise ended(peer[1])

    def _end_the_slow(self) -> None:
        now = time.monotonic()
        for pending in [v for v in self._pending.values() if v.deadline < now]:
            self._turn_away(pending, f"no proof of its identity within {HANDSHAKE_SECONDS:g} s")

    def _turn_away(self, pending: PendingPeer, why: str) -> None:
        self._turned_away += 1
        if self._turned_away <= MOST_LINES:
            with contextlib.suppress(OSError):
                address = pending.connection.getpeername()[0]
                logger.warning("init(): a connection from %s was turned away: %s", address, why)
        self._drop(pending)

    def _drop(self, pending: PendingPeer) -> None:
        self._selector.unregister(pending.connection)
        del self._pending[pending.connection]
        pending.connection.close()

    def _close(self) -> None:
        if self._turned_away > MOST_LINES:
            more = self._turned_away - MOST_LINES
            logger.warning("init(): %d more connections were turned away", more)
        for pending in self._pending.values():
            pending.connection.close()
        self._selector.close()
        self._listener.close()
        for peer in self.peers.values():
            peer.setblocking(True)


class Patient:
    """A new connection whose waits end after some seconds, or when ``poll`` raises.

    The kernel tries for a second or more to connect to a lost host. Meanwhile ``poll`` may find out
    that the host is lost.
    """

    LOOK_SECONDS = 0.01

    def __init__(self, connection: socket.socket, poll: Callable[[], None], seconds: float) -> None:
        self._connection, self._poll = connection, poll
        self.set_patience(seconds)

    def set_patience(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds

    def connect(self, where: Tuple[Any, ...]) -> None:
        """Connect; afterwards a send may block for at most CONNECT_SECONDS.

        :raises OSError: no process listens at ``where``, or the host does not answer in time.
        """
        self._connection.setblocking(False)
        error = self._connection.connect_ex(where)
        if error == errno.EINPROGRESS:
            self._wait_for(select.POLLOUT)
            error = self._connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error))
        self._connection.settimeout(CONNECT_SECONDS)

    def sendall(self, data: bytes) -> None:
        self._connection.sendall(data)

    def recv(self, size: int) -> bytes:
        self._wait_for(select.POLLIN)
        return self._connection.recv(size)

    def _wait_for(self, event: int) -> None:
        poller = select.poll()
        poller.register(self._connection, event)
        while not poller.poll(1000 * self.LOOK_SECONDS):
            try:
                self._poll()
            except Exception:
                # read data that has arrived, even if `poll` reports that its sender has ended
                if not poller.poll(0):
                    raise
            if time.monotonic() > self._until:
                raise socket.timeout


def reach(
    host: str, ports: Iterable[int], own: Hello, key: bytes, poll: Callable[[], None]
) -> Tuple[socket.socket, Hello]:
    """Wait until a rank listens at one of the ports; return the connection and the rank's hello.

    :param poll: called repeatedly; an exception that ``poll`` raises ends the attempts.
    """
    warned: Set[str] = set()

    def tell(error: Exception) -> None:
        if str(error) not in warned:
            logger.warning("init(): %s: %s", host, error)
        warned.add(str(error))

    pause, longest = RETRY_SECONDS
    while True:
        poll()
        for where in _addresses(host, ports, tell):
            poll()
            connection = socket.socket(where[0], socket.SOCK_STREAM)
            waits = Patient(connection, poll, CONNECT_SECONDS)
            try:
                waits.connect(where[1])
                waits.set_patience(CONNECT_SECONDS)
                hello = introduce(waits, own, key)
                connection.settimeout(None)
                return connection, hello
            except Stranger as error:
                tell(error)
            except OSError:
                pass
            finally:
                if connection.gettimeout() is not None:
                    connection.close()
        time.sleep(pause)
        pause = min(1.5 * pause, longest)


def _addresses(
    host: str, ports: Iterable[int], tell: Callable[[Exception], None]
) -> Iterator[Tuple[int, tuple]]:
    found: List[tuple] = []
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:  # reach() retries, because the name may become known later
        tell(error)
    for port in ports:
        for family, _, _, _, address in found:
            yield family, (address[0], port, *address[2:])


def set_patience(connection: socket.socket, limit: float) -> None:
    """Make the kernel probe the other host ten times within the limit, at most once a second."""
    pause = min(max(1, int(limit / LOOKS)), _MOST_PAUSE)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        *((socket.TCP_NODELAY, 1), (_TCP_THIN_LINEAR_TIMEOUTS, 1)),
        *((socket.TCP_KEEPIDLE, pause), (socket.TCP_KEEPINTVL, pause), (socket.TCP_KEEPCNT, 127)),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, name, value)


def bound(connection: socket.socket, limit: float) -> None:
    """Make the kernel end the connection when the other host is silent for ``limit`` seconds."""
    set_patience(connection, limit)
    milliseconds = min(int(1000 * max(limit, SHORTEST_SECONDS)), 2**31 - 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
