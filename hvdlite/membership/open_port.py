"""The port of a rank of an elastic job, which stays open until the rank ends.

A thread accepts all connections and closes those of strangers, so that strangers can't fill the
queue. A connection of a process that has proved its identity is either kept by ``Lives``, or waits
here for a rerendezvous that this rank leads.
"""

import contextlib
import socket
import threading
from typing import Callable, Set, Tuple

from hvdlite.bootstrap.acceptor import Acceptor, Peer
from hvdlite.bootstrap.handshake import LIFE, NEW, READY, Hello, PendingPeer, Stranger


class OpenPort(Acceptor):
    """The port of the process ``number``, and its thread. At most ``ranks`` ranks may connect."""

    def __init__(self, listener: socket.socket, number: int, key: bytes, ranks: int) -> None:
        own = Hello(READY, number, 0, 0)
        super().__init__(listener, own, key, {(READY, rank) for rank in range(ranks)}, lambda: None)
        self.address: Tuple[str, int] = listener.getsockname()[:2]
        # This lock protects all members. The thread does not hold the lock while select() waits.
        self._changed = threading.Condition()
        self._closed = False
        self._selector.register(listener, 1)
        threading.Thread(target=self._run, name="hvdlite port", daemon=True).start()

    def present(self) -> Set[Peer]:
        """Return the purpose and the number of each process that has proved its identity."""
        with self._changed:
            return set(self.peers)

    def wait_for_one(self, seconds: float) -> None:
        """Wait until a process connects or disconnects, at most this number of seconds."""
        with self._changed:
            self._changed.wait(seconds)

    def take(self, peer: Peer) -> socket.socket:
        """Return the peer's connection, which the caller must close.

        :raises KeyError: the peer has disconnected.
        """
        with self._changed:
            connection = self.peers.pop(peer)
            self._forget(connection)
        connection.setblocking(True)
        return connection

    def await_one(self, peer: Peer, poll: Callable[[], None]) -> socket.socket:
        """Wait until the peer connects, or ``poll`` raises; return the connection."""
        while True:
            poll()
            with contextlib.suppress(KeyError):
                return self.take(peer)
            self.wait_for_one(self.LOOK_SECONDS)

    def send_away(self) -> None:
        """Close the connections of a rerendezvous, so that ranks connect again to the right leader.

        Connections for ``Lives`` stay open: their end would count as the death of this process.
        """
        with self._changed:
            for peer in [each for each in self.peers if each[0] != LIFE]:
                self._ended(peer)

    def close(self) -> None:
        """Close the port, and all connections that no caller has taken."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread, which closes everything

    def close_in_child(self) -> None:
        """In a forked child, which has no thread, close the inherited descriptors."""
        for connection in [self._listener, *self.peers.values(), *self._pending]:
            connection.close()
        self._selector.close()

    def _run(self) -> None:
        while not self._closed:
            ready = self._selector.select(self.LOOK_SECONDS if self._pending else None)
            with self._changed:
                before = set(self.peers)
                for key, _ in ready:
                    self._serve(key.fileobj)
                self._end_the_slow()
                if before != set(self.peers):
                    self._changed.notify_all()
        for connection in self.peers.values():
            connection.close()
        self.peers.clear()
        self._close()

    def _accept_peer(self, pending: PendingPeer, hello: Hello) -> None:
        """Accept a peer. If it has connected before, close the earlier connection."""
        peer = (hello.purpose, hello.rank)
        if hello.purpose not in (READY, NEW, LIFE) or hello[2:] != self._own[2:]:
            raise Stranger("the peer does not belong to this job, or is not in a rerendezvous")
        if peer in self.peers:
            self._ended(peer)
        del self._pending[pending.connection]
        self.peers[peer] = pending.connection

    def _ended(self, peer: Peer) -> None:
        connection = self.peers.pop(peer)
        self._forget(connection)
        connection.close()

    def _forget(self, connection: socket.socket) -> None:
        with contextlib.suppress(KeyError):  # already unregistered, because the peer has sent data
            self._selector.unregister(connection)

    def _turn_away(self, pending: PendingPeer, why: str) -> None:
        self._drop(pending)
