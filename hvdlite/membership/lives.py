"""Which processes of an elastic job live: each rank has a connection to each, kept to its end.

Both sides have proved that they are of the job when a connection was made, so it ends with the
process and by nobody else. A process that computes, or is stopped, need not do anything: its kernel
acknowledges a byte. Nobody can do that in the place of a process that has ended, as who takes its
port can.
"""

import contextlib
import errno
import fcntl
import socket
import termios
import time
from typing import Dict, List, Set

from hvdlite.bootstrap.acceptor import LOOKS

ANSWERS, UNKNOWN, SILENT, GONE = "answers", "unknown", "silent", "gone"
_LEFT = b"!"  # this process goes on, or ends, without the other one
_LONGEST_PAUSE = 1.0  # seconds between two questions
_OF_HOSTS = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN)


class Lives:
    """The connections of this process to the others', by their numbers. One thread uses them."""

    def __init__(self) -> None:
        self._to: Dict[int, socket.socket] = {}
        self._asked: Dict[int, float] = {}  # when, at last
        self.left_by: Set[int] = set()  # those that go on, or have ended, without this process

    def numbers(self) -> List[int]:
        return sorted(self._to)

    def add(self, number: int, connection: socket.socket) -> None:
        """Keep a proved connection, in the place of an earlier one to that process."""
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if number in self._to:
            self._to.pop(number).close()
        self._to[number], self._asked[number] = connection, time.monotonic()  # by its last proof

    def state(self, number: int, limit: float) -> str:
        """Ask the process's kernel; return what is known now. UNKNOWN: nothing yet, or no such one.

        :param limit: seconds after a question without an answer until it is SILENT.
        """
        connection = self._to.get(number)
        if connection is None:
            return UNKNOWN
        now = time.monotonic()  # before: what stops this process is no silence of the other's
        try:
            while data := connection.recv(1 << 10):  # its questions, or that word
                if _LEFT in data:
                    self.left_by.add(number)
            return GONE
        except BlockingIOError:
            pass
        except OSError as error:
            return SILENT if error.errno in _OF_HOSTS else GONE
        asked = self._asked[number]
        if any(fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4))):
            return SILENT if now - asked > limit else UNKNOWN
        if now - asked < min(limit / LOOKS, _LONGEST_PAUSE):
            return ANSWERS
        self._asked[number] = now
        with contextlib.suppress(OSError):  # the next look finds out why
            connection.send(b"?")
        return UNKNOWN

    def leave(self, number: int) -> None:
        """Tell a process that this one goes on, or ends, without it; it may stand still now."""
        with contextlib.suppress(KeyError, OSError):
            self._to[number].send(_LEFT)

    def close(self) -> None:
        """Close the connections; while this process lives, only where the others do so, too."""
        for connection in self._to.values():
            connection.close()
        self._to.clear()
