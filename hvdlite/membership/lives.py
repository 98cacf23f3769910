"""Which processes of an elastic job live: each rank keeps a connection to each other rank.

Both sides proved that they belong to the job when they connected. So a connection ends when its
process ends, and not before. A process that computes or is stopped does nothing: its kernel
acknowledges a byte. A stranger that takes the port of a dead process can't do that.
"""

import contextlib
import errno
import fcntl
import socket
import termios
import time
from typing import Dict, List, Set

from hvdlite.bootstrap.acceptor import LOOKS

ANSWERS, UNKNOWN, SILENT, DEAD = "answers", "unknown", "silent", "dead"
_LEFT = b"!"  # says that this process goes on, or ends, without the other process
_LONGEST_PAUSE = 1.0  # seconds between two questions
_OF_HOSTS = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN)


class Lives:
    """This process's connections to the others, by their numbers. For one thread."""

    def __init__(self) -> None:
        self._to: Dict[int, socket.socket] = {}
        self._asked: Dict[int, float] = {}  # the time of the last question
        self.left_by: Set[int] = set()  # processes that go on, or have ended, without this one

    def numbers(self) -> List[int]:
        return sorted(self._to)

    def add(self, number: int, connection: socket.socket) -> None:
        """Keep a proved connection; it replaces an earlier one to that process."""
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if number in self._to:
            self._to.pop(number).close()
        self._to[number], self._asked[number] = (
            connection,
            time.monotonic(),
        )

    def state(self, number: int, limit: float) -> str:
        """Ask the process's kernel; return what is known now. UNKNOWN: no answer, or no connection.

        :param limit: seconds from a question without an answer until the process is SILENT.
        """
        connection = self._to.get(number)
        if connection is None:
            return UNKNOWN
        # taken before reading, because this process may be stopped meanwhile
        now = time.monotonic()
        try:
            while data := connection.recv(1 << 10):  # bytes that ask, or _LEFT
                if _LEFT in data:
                    self.left_by.add(number)
            return DEAD
        except BlockingIOError:
            pass
        except OSError as error:
            return SILENT if error.errno in _OF_HOSTS else DEAD
        asked = self._asked[number]
        if any(fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4))):
            return SILENT if now - asked > limit else UNKNOWN
        if now - asked < min(limit / LOOKS, _LONGEST_PAUSE):
            return ANSWERS
        self._asked[number] = now
        with contextlib.suppress(OSError):  # the next call finds out why it failed
            connection.send(b"?")
        return UNKNOWN

    def leave(self, number: int) -> None:
        """Tell a process, which may be stopped, that this process goes on or ends without it."""
        with contextlib.suppress(KeyError, OSError):
            self._to[number].send(_LEFT)

    def close(self) -> None:
        """Close the connections: at the end of this process, or when all processes close theirs."""
        for connection in self._to.values():
            connection.close()
        self._to.clear()
