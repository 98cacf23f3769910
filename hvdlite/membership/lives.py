"""Tells which processes of an elastic job live: each rank keeps a connection to each other rank.

When they connected, both sides proved that they belong to the job. So the connection ends only when
a process ends. To check a process, this module sends a byte: the kernel acknowledges the byte even
if the process computes or is stopped. A stranger that listens at a dead process's port stays out.
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
_LEFT = b"!"  # this message says that its sender continues, or ends, without the receiver
_LONGEST_PAUSE = 1.0  # the longest time in seconds between two probe bytes to a process
_OF_HOSTS = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN)


class Lives:
    """The connections to the other processes, by their numbers. Only one thread may use them."""

    def __init__(self) -> None:
        self._to: Dict[int, socket.socket] = {}
        self._asked: Dict[int, float] = {}  # the time of the last byte sent to each process
        self.left_by: Set[int] = set()  # processes that have sent _LEFT to this process

    def numbers(self) -> List[int]:
        return sorted(self._to)

    def add(self, number: int, connection: socket.socket) -> None:
        """Add a connection to a process that has proved its identity, or replace an earlier one."""
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if number in self._to:
            self._to.pop(number).close()
        self._to[number], self._asked[number] = connection, time.monotonic()

    def state(self, number: int, limit: float) -> str:
        """Return the state of a process, without waiting; send it a probe byte if one is due.

        :param limit: the time in seconds without acknowledgment after which a process is SILENT,
            not UNKNOWN.
        """
        connection = self._to.get(number)
        if connection is None:
            return UNKNOWN
        # Take the time before reading: if this process is stopped meanwhile, that is no silence.
        now = time.monotonic()
        try:
            while data := connection.recv(1 << 10):  # the other process's b"?" or _LEFT
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
        with contextlib.suppress(OSError):  # the next call's recv() raises the error again
            connection.send(b"?")
        return UNKNOWN

    def leave(self, number: int) -> None:
        """Tell a process, even if it is stopped now, that this process continues without it."""
        with contextlib.suppress(KeyError, OSError):
            self._to[number].send(_LEFT)

    def close(self) -> None:
        """Close all connections. To the other processes this looks like the end of this process."""
        for connection in self._to.values():
            connection.close()
        self._to.clear()
