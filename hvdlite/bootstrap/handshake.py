"""The handshake of two ranks on a new connection: each proves that it belongs to the job.

The side that connects sends first. Each sends a hello of fixed size, then its proof: an HMAC-SHA256
of its role and both hellos. A listener answers the hello of a stranger, but uses and keeps nothing
else from the stranger. Each hello has a new nonce, so a recorded proof is worthless. Data is not
encrypted.

The key is made from the job's name and HVDLITE_SECRET, or the contents of HVDLITE_SECRET_FILE.
Without a secret the key keeps jobs apart, but anybody who knows the job's name has the key.
"""

import hashlib
import hmac
import os
import socket
import stat
import struct
from pathlib import Path
from typing import Any, NamedTuple

from hvdlite.bootstrap.values import receive_bytes

SECRET, SECRET_FILE = "HVDLITE_SECRET", "HVDLITE_SECRET_FILE"
# The purposes of a connection. ENDED: a rank ends without calling init(). READY: a rank joins a
# rerendezvous; NEW: a replacement joins it. LIFE: this connection ends when the process ends.
EXCHANGE, DATA, MESSAGES, ENDED, WATCH, READY, NEW, LIFE = range(8)
VERSION = 1
_MAGIC = b"hvdlite\0"
_HELLO = struct.Struct(">8sHHIII16s")
_PROOF = hashlib.sha256().digest_size


class Stranger(Exception):
    """The other side of a connection is not a rank of this job."""


class Hello(NamedTuple):
    """A rank's description of itself, and of the job that it expects."""

    purpose: int
    rank: int
    size: int
    joined: int  # the number of jobs that the rank was in before
    version: int = VERSION

    def packed(self) -> bytes:
        about = (self.version, self.purpose, self.rank, self.size, self.joined)
        return _HELLO.pack(_MAGIC, *about, os.urandom(16))


_FOREIGN = "the peer does not speak hvdlite's protocol"
_WRONG_KEY = "the peer has another key, or belongs to another job"


def _unpack(data: bytes) -> Hello:
    magic, version, purpose, rank, size, joined, _ = _HELLO.unpack(data)
    if magic != _MAGIC:
        raise Stranger(_FOREIGN)
    return Hello(purpose, rank, size, joined, version)


def key_of(job: str) -> bytes:
    """Return the key of this job.

    :raises ValueError: other users may read the secret's file, or the file is empty.
    """
    secret = os.environ.get(SECRET, "").encode()
    path = os.environ.get(SECRET_FILE)
    if path and not secret:
        try:
            mode, secret = Path(path).stat().st_mode, Path(path).read_bytes().strip()
        except OSError as error:
            raise ValueError(f"{SECRET_FILE} is {path}: {error.strerror}") from None
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ValueError(
                f"{SECRET_FILE} is {path}: other users may read this file: run `chmod 600` on it"
            )
        if not secret:
            raise ValueError(f"{SECRET_FILE} is {path}: the file is empty: write a secret to it")
    return hmac.new(secret, f"hvdlite {job}".encode(), hashlib.sha256).digest()


def _proof(key: bytes, role: bytes, client: bytes, server: bytes) -> bytes:
    return hmac.new(key, role + client + server, hashlib.sha256).digest()


def introduce(connection: Any, own: Hello, key: bytes) -> Hello:
    """Exchange hellos and proofs of identity with the listener; return the listener's hello.

    :raises Stranger: the listener is not a rank of this job, or has another version.
    :raises OSError: no answer within the connection's timeout, or the connection was closed.
    """
    client = own.packed()
    connection.sendall(client)
    server = receive_bytes(connection, _HELLO.size)
    other = _unpack(server)
    try:
        connection.sendall(_proof(key, b"client", client, server))
        proof = receive_bytes(connection, _PROOF)
    except ConnectionError:
        raise Stranger(f"the peer refuses this rank: {_WRONG_KEY}") from None
    if not hmac.compare_digest(proof, _proof(key, b"server", client, server)):
        raise Stranger(_WRONG_KEY)
    if other.version != VERSION:
        versions = f"version {other.version} of the handshake, but this rank has version {VERSION}"
        raise Stranger(f"the peer has {versions}: install one version of hvdlite on all hosts")
    return other


class PendingPeer:
    """An accepted connection whose peer has not proved its identity yet. No method blocks."""

    def __init__(self, connection: socket.socket, own: Hello, key: bytes, deadline: float) -> None:
        self.connection, self.deadline = connection, deadline
        self._own, self._key = own, key
        self._client = self._server = self._received = b""

    def receive(self) -> Any:
        """Read what has arrived; return the peer's Hello, or None until the peer has sent a proof.

        :raises Stranger: the peer does not belong to this job.
        :raises OSError: the connection is broken.
        """
        want = _PROOF if self._client else _HELLO.size
        data = self.connection.recv(want - len(self._received))
        if not data:
            raise Stranger("the peer has closed the connection")
        self._received += data
        if not self._client and not _MAGIC.startswith(self._received[: len(_MAGIC)]):
            raise Stranger(_FOREIGN)
        if len(self._received) < want:
            return None
        received, self._received = self._received, b""
        return self._check(received) if self._client else self._answer(received)

    def _answer(self, hello: bytes) -> None:
        self._client, self._server = hello, self._own.packed()
        self.connection.sendall(self._server)

    def _check(self, proof: bytes) -> Hello:
        hellos = (self._client, self._server)
        if not hmac.compare_digest(proof, _proof(self._key, b"client", *hellos)):
            raise Stranger(_WRONG_KEY)
        self.connection.sendall(_proof(self._key, b"server", *hellos))
        return _unpack(self._client)
