"""Sends and receives values, as JSON, on a connection of two ranks.

The values are numbers, texts, None, and lists and dictionaries of them.
"""

import json
import struct
from typing import Any

_LENGTH = struct.Struct(">I")
MOST_BYTES = 1 << 24  # maximum length of a value in JSON


def receive_bytes(connection: Any, size: int) -> bytes:
    """Return exactly ``size`` bytes.

    :raises OSError: the connection is broken, or nothing has arrived within its timeout.
    """
    data = bytearray()
    while len(data) < size:
        more = connection.recv(min(size - len(data), 1 << 16))
        if not more:
            raise ConnectionResetError("the peer has closed the connection")
        data += more
    return bytes(data)


def send(connection: Any, value: Any) -> None:
    """Send a value that JSON can express."""
    text = json.dumps(value).encode()
    if len(text) > MOST_BYTES:
        raise ValueError(f"a value to send has {len(text)} bytes: send at most {MOST_BYTES}")
    connection.sendall(_LENGTH.pack(len(text)) + text)


def receive(connection: Any) -> Any:
    """Return the next value; errors are those of :func:`receive_bytes`."""
    (length,) = _LENGTH.unpack(receive_bytes(connection, _LENGTH.size))
    if length > MOST_BYTES:
        raise ConnectionAbortedError(f"the peer sent {length} bytes: expected {MOST_BYTES} at most")
    return json.loads(receive_bytes(connection, length))
