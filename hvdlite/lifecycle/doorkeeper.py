"""Keeps the door of a rank of an elastic job, a port that stays open, whatever the rank does.

A thread accepts all that come and drops those that do not prove to be of the job: so strangers fill
no queue. Who has proved waits here: for a roll call of this rank's, or to be one of its lives.
"""

import contextlib
import socket
import threading
from typing import Callable, Set, Tuple

from hvdlite.lifecycle.handshake import LIFE, NEW, READY, Hello, Stranger, Visitor
from hvdlite.lifecycle.reception import Guest, Reception


class Doorkeeper(Reception):
    """The thread behind one door; ``ranks`` may come at once."""

    def __init__(self, listener: socket.socket, number: int, key: bytes, ranks: int) -> None:
        own = Hello(READY, number, 0, 0)
        super().__init__(listener, own, key, {(READY, rank) for rank in range(ranks)}, lambda: None)
        self.address: Tuple[str, int] = listener.getsockname()[:2]
        self._came = threading.Condition()  # its lock guards all but the selector's wait
        self._closed = False
        self._selector.register(listener, 1)
        threading.Thread(target=self._run, name="hvdlite door", daemon=True).start()

    def present(self) -> Set[Guest]:
        """Return those that have proved who they are, and wait."""
        with self._came:
            return set(self.guests)

    def wait_for_one(self, seconds: float) -> None:
        """Return after these seconds, or when somebody has come or gone."""
        with self._came:
            self._came.wait(seconds)

    def take(self, guest: Guest) -> socket.socket:
        """Return the guest's connection, which is the caller's then.

        :raises KeyError: it has gone.
        """
        with self._came:
            connection = self.guests.pop(guest)
            self._forget(connection)
        connection.setblocking(True)
        return connection

    def await_one(self, guest: Guest, look: Callable[[], None]) -> socket.socket:
        """Return the guest's connection when it is there; what ``look`` raises ends the wait."""
        while True:
            look()
            with contextlib.suppress(KeyError):
                return self.take(guest)
            self.wait_for_one(self.LOOK_SECONDS)

    def send_away(self) -> None:
        """Close the connections of a roll call's: they come again, here or to another door.

        A life waits on: its end would be that of this process.
        """
        with self._came:
            for guest in [each for each in self.guests if each[0] != LIFE]:
                self._ended(guest)

    def close(self) -> None:
        """Close the door, and let nobody wait."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread, which closes the rest

    def let_go(self) -> None:
        """Close the descriptors in a child, which has no thread: the parent's stay open."""
        for connection in [self._listener, *self.guests.values(), *self._visitors]:
            connection.close()
        self._selector.close()

    def _run(self) -> None:
        while not self._closed:
            ready = self._selector.select(self.LOOK_SECONDS if self._visitors else None)
            with self._came:
                before = set(self.guests)
                for key, _ in ready:
                    self._serve(key.fileobj)
                self._end_the_slow()
                if before != set(self.guests):
                    self._came.notify_all()
        for connection in self.guests.values():
            connection.close()
        self.guests.clear()
        self._close()

    def _let_in(self, visitor: Visitor, hello: Hello) -> None:
        """A guest that comes again has left the earlier connection."""
        guest = (hello.purpose, hello.rank)
        if hello.purpose not in (READY, NEW, LIFE) or hello[2:] != self._own[2:]:
            raise Stranger("it comes to no roll call")
        if guest in self.guests:
            self._ended(guest)
        del self._visitors[visitor.connection]
        self.guests[guest] = visitor.connection

    def _ended(self, guest: Guest) -> None:
        connection = self.guests.pop(guest)
        self._forget(connection)
        connection.close()

    def _forget(self, connection: socket.socket) -> None:
        with contextlib.suppress(KeyError):  # it has sent something, and is looked after no more
            self._selector.unregister(connection)

    def _turn_away(self, visitor: Visitor, why: str) -> None:
        self._drop(visitor)
