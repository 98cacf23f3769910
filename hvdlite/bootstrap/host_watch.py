"""Finds the lost hosts of a job without MPI.

The lowest ranks of the hosts have extra connections without data, on which no probe waits behind
data. The kernels of both ends probe and answer (keepalive), so a host whose processes are stopped
or busy does not count as lost. Keepalive counts whole seconds. If a host may be silent for a few
seconds only (core/limits.py has the limits), this module also sends bytes, which the other kernel
acknowledges.
"""

import contextlib
import socket
import struct
import threading
import time
from typing import Callable, Set

from hvdlite.bootstrap.acceptor import LOOKS, set_patience
from hvdlite.bootstrap.mesh import Mesh
from hvdlite.core.limits import ELASTIC_LIMIT, LIMIT, limit_of
from hvdlite.core.log import logger

_BYTES_ASK = 5.0  # if a host counts as lost in fewer seconds, ranks send bytes besides keepalive
_LONGEST_PAUSE = 1.0  # seconds by which a lost host may be found late; chosen
_AGES = struct.Struct("=52xII")  # tcpi_last_data_recv, tcpi_last_ack_recv: milliseconds


class HostWatch:
    """Watches the other hosts: the lowest rank of a host does so, and tells the host's other ranks.

    :param lose: called repeatedly, in a thread, with each lost host's name and all lost ranks.
    """

    def __init__(self, rank: int, mesh: Mesh, lose: Callable[[str, Set[int]], None]) -> None:
        self.lost: Set[int] = set()  # numbers of lost ranks
        self._mesh, self._lose = mesh, lose
        self._leads = mesh.lowest[rank] == rank
        watch = {other: fd for other, fd in enumerate(mesh.watch) if fd >= 0}
        self._streams = {other: socket.socket(fileno=fd) for other, fd in watch.items()}
        self._ends, self._changed = False, threading.Event()
        self._thread = threading.Thread(target=self._run, name="hvdlite watch", daemon=True)
        self.set_limit(limit_of(LIMIT))
        if self._streams:
            self._thread.start()

    def set_limit(self, limit: float) -> None:
        """Set the number of seconds of silence after which a host counts as lost."""
        self._limit, self._since = limit, time.monotonic()
        self._pause = min(limit / LOOKS, _LONGEST_PAUSE)
        self._changed.set()  # wakes the thread, which may be in a longer pause
        # a copy, because the thread drops streams that have ended
        for stream in list(self._streams.values()):
            with contextlib.suppress(OSError):
                set_patience(stream, limit)
                stream.setblocking(False)

    def close(self) -> None:
        self._ends = True
        self._changed.set()
        if self._thread.is_alive():
            self._thread.join()
        for stream in self._streams.values():
            stream.close()

    def _run(self) -> None:
        last = time.monotonic()
        while not self._ends:
            self._changed.wait(self._pause)
            self._changed.clear()
            now = time.monotonic()
            # this process was stopped meanwhile, so count silence only from now on
            if now - last > self._limit / 2:
                self._since = now
            last = now
            for rank in list(self._streams):
                self._look_at(rank, now)
            for host in {self._mesh.hosts[rank] for rank in self.lost}:
                self._lose(host, self.lost)

    def _look_at(self, rank: int, now: float) -> None:
        stream, is_local = self._streams[rank], self._is_local(rank)
        try:
            if self._leads and not is_local and self._limit < _BYTES_ASK:
                stream.send(b".")
            self._take(stream.recv(1 << 12), rank)
        except BlockingIOError:
            pass
        except OSError:  # the other process has ended; its host may live
            self._streams.pop(rank).close()
            return
        if self._leads and not is_local:
            silent = min(_silence(stream), now - self._since)
            if silent > self._limit and time.monotonic() - now < self._limit / 2:
                self._declare(rank, silent)

    def _is_local(self, rank: int) -> bool:
        return self._mesh.lowest[rank] != rank or not self._leads

    def _take(self, data: bytes, rank: int) -> None:
        """Note lost hosts that this host's lowest rank reports; ignore other hosts' probe bytes."""
        if not data:
            raise ConnectionResetError
        for word in data.split(b"\n"):
            if word.isdigit() and self._is_local(rank):
                self._note(int(word))

    def _declare(self, rank: int, silent: float) -> None:
        if rank in self.lost:
            return
        logger.warning(
            "host %s has been silent for %.1f s, so it counts as lost (%s and %s set how long a "
            "host may be silent)", self._mesh.hosts[rank], silent, LIMIT, ELASTIC_LIMIT
        )  # fmt: skip
        for other, stream in self._streams.items():
            if self._is_local(other):
                with contextlib.suppress(OSError):
                    stream.send(b"\n%d\n" % rank)
        self._note(rank)

    def _note(self, leader: int) -> None:
        if leader < len(self._mesh.lowest):
            self.lost |= {r for r, lowest in enumerate(self._mesh.lowest) if lowest == leader}


def _silence(stream: socket.socket) -> float:
    """Return the seconds since the other host's kernel last sent anything."""
    info = stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _AGES.size)
    return min(_AGES.unpack(info)) / 1000
