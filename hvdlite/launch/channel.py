"""The connection between the launcher and the agent of each rank: frames on TCP.

A frame is its kind (one byte), its length (four, big-endian) and that many bytes. An agent says
HELLO with the token that only this job's processes have; a launcher that does not know it hangs up.
"""

import json
import os
import socket
import struct
from typing import Any, Iterator, List, Tuple

HELLO, START, OUTPUT, EXIT, STOP, DATA, CLEAN, BYE = range(8)
_HEAD = struct.Struct(">BI")
_MOST_UNKNOWN = 1 << 16  # bytes of a frame from somebody who has not yet said who it is

# One variable carries it all: TOKEN@ADDRESS:PORT,ADDRESS:PORT
VARIABLE = "HVDLITE_LAUNCHER"

Frame = Tuple[int, bytes]


class ChannelClosed(Exception):
    """The other end is gone."""


class Channel:
    """Frames over a connected socket. Sending blocks; receiving takes what has arrived."""

    def __init__(self, sock: socket.socket):
        self.sock = sock
        self.trusted = False
        self._buffer = bytearray()
        _notice_dead_hosts(sock)

    def send(self, kind: int, data: bytes = b"") -> None:
        try:
            self.sock.sendall(_HEAD.pack(kind, len(data)) + data)
        except OSError as error:
            raise ChannelClosed from error

    def send_json(self, kind: int, value: Any) -> None:
        self.send(kind, json.dumps(value).encode())

    def receive(self) -> List[Frame]:
        """Return the frames that are complete after one read."""
        try:
            data = self.sock.recv(1 << 16)
        except OSError as error:
            raise ChannelClosed from error
        if not data:
            raise ChannelClosed
        self._buffer += data
        return list(self._frames())

    def _frames(self) -> Iterator[Frame]:
        while len(self._buffer) >= _HEAD.size:
            kind, length = _HEAD.unpack_from(self._buffer)
            if not self.trusted and length > _MOST_UNKNOWN:
                raise ChannelClosed
            end = _HEAD.size + length
            if len(self._buffer) < end:
                return
            yield kind, bytes(self._buffer[_HEAD.size : end])
            del self._buffer[:end]

    def close(self) -> None:
        self.sock.close()


def _notice_dead_hosts(sock: socket.socket) -> None:
    """Have the kernel ask an idle peer: a host that lost its power closes no connection."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, seconds in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 5)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds)


def new_token() -> str:
    return os.urandom(16).hex()


def join_address(token: str, addresses: List[str], port: int) -> str:
    """Return what an agent needs to find the launcher, as one word."""
    return f"{token}@" + ",".join(f"{address}:{port}" for address in addresses)


def connect(where: str, timeout: float = 10.0) -> Tuple[Channel, str]:
    """Connect to the launcher by the first of its addresses that answers; also return the token."""
    token, _, places = where.partition("@")
    failures = []
    for place in places.split(","):
        address, _, port = place.rpartition(":")
        try:
            sock = socket.create_connection((address, int(port)), timeout)
        except OSError as error:
            failures.append(f"{place}: {error.strerror or error}")
            continue
        sock.settimeout(None)
        return Channel(sock), token
    raise ConnectionError("; ".join(failures))
