"""The connection between the launcher and the agent of each rank: frames on TCP.

A frame has its kind (one byte), the length of its data (four bytes, big-endian), and its data. An
agent first sends HELLO with the token that only this job's processes have. Each side accepts
certain kinds of frames, each up to a maximum length. Any other frame raises BadFrame.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import select
import socket
import struct
import termios
import time
from collections import namedtuple
from collections.abc import Iterator, Mapping

from hvdlite.core import agent_protocol

TYPE_CHECKING = False
if TYPE_CHECKING:  # to import typing takes 2 ms
    from typing import Any

HELLO, START, OUTPUT, EXIT, STOP, DATA, CLEAN, BYE, TROUBLE, LOOK, FLIGHT, LET_IN = range(12)
# A frame LOST carries a lost host's name. A frame SIGN carries the ranks that caused a failure.
LOST, SIGN = 12, 13
PORT, GIVEN_UP, COMES = 14, 15, 16  # kinds of frames of elastic jobs, see core/agent_protocol.py
_HEAD = struct.Struct(">BI")
READ = 1 << 16  # bytes per read
MOST_DATA = (1 << 32) - 1  # maximum bytes of a task or a result of hvdlite.run

# The kinds of frames that each side may send, and the maximum bytes of each. START has room for any
# environment.
FROM_STRANGERS = {HELLO: 1 << 14}
FROM_AGENTS = {OUTPUT: READ + 1, EXIT: 1 << 10, DATA: MOST_DATA, CLEAN: 0}
FROM_AGENTS.update({TROUBLE: 20, FLIGHT: 1 << 22, LET_IN: 20, SIGN: 160, PORT: 160})
FROM_AGENTS[GIVEN_UP] = 1 << 13
FROM_LAUNCHER = {START: 1 << 26, STOP: 0, DATA: MOST_DATA, BYE: 0, LOOK: 1}
FROM_LAUNCHER.update({LOST: 1 << 8, COMES: 1 << 8})
# Agents pass on these lines of their ranks. The first byte of a line decides the kind of the frame;
# the frame has the rest of the line.
PASSED_ON = {
    **{agent_protocol.TROUBLE: TROUBLE, agent_protocol.LET_IN: LET_IN, agent_protocol.BLAME: SIGN},
    **{agent_protocol.PORT: PORT, agent_protocol.GIVEN_UP: GIVEN_UP},
}
NEWS = {LOST: b"", COMES: agent_protocol.COMES}
QUIETLY = b"q"  # data of a LOOK that does not ask for stacks

PROBE = 2  # seconds between two keepalive probes to an idle peer
LATE = 3 * PROBE  # seconds without an answer after which a host counts as late
MOST_SILENCE = 120 * PROBE  # longest limit, because the kernel ends a connection after 127 probes
# struct tcp_info: tcpi_retransmits, tcpi_probes, tcpi_last_ack_recv (in milliseconds)
_UNANSWERED = struct.Struct("=2xBB52xI")

# This variable tells agents where the launcher listens: TOKEN@ADDRESS:PORT,ADDRESS:PORT or
# TOKEN/FINGERPRINT@...
VARIABLE = agent_protocol.LAUNCHER


class ChannelClosed(Exception):
    """The other end is gone."""


class BadFrame(Exception):
    """The other end sent a frame that no process of this job sends; the text describes it."""


class Channel:
    """Sends and receives frames over a connected socket. ``send`` blocks, ``receive`` does not.

    :param takes: the kinds of frames that the other end may send, and the maximum bytes of each.
    """

    # seconds of silence after which the other host counts as lost, even if ``send`` has no limit
    most_silence = math.inf

    def __init__(self, sock: socket.socket, takes: Mapping[int, int]):
        self.sock = sock
        self.takes = takes
        self._buffer = bytearray()
        self._encrypted = hasattr(sock, "do_handshake")
        self._shakes_hands = self._encrypted  # True until the TLS handshake is complete
        _probe(sock)
        sock.setblocking(False)

    def send(self, kind: int, data: bytes = b"", patience: float = math.inf) -> None:
        """Send a frame.

        :param patience: seconds that the other end may take to read the frame; with 0, the frame
            must fit into the socket's buffer.
        :raises ChannelClosed: the other end or its host is gone, or did not read in time.
        """
        rest = memoryview(_HEAD.pack(kind, len(data)) + data)
        until = time.monotonic() + patience
        try:
            while rest:
                self.sock.settimeout(max(min(until - time.monotonic(), PROBE), 0))
                try:
                    rest = rest[self.sock.send(rest) :]
                except socket.timeout:
                    if self.is_lost():
                        raise
        except OSError as error:
            raise ChannelClosed from error
        finally:
            with contextlib.suppress(OSError):
                self.sock.setblocking(False)

    def receive(self) -> list[tuple[int, bytes]]:
        """Read once, without waiting; return the frames that are complete now.

        :raises BadFrame: a frame that this side does not accept.
        """
        try:
            if self._shakes_hands:
                self.sock.do_handshake()  # type: ignore[attr-defined]
                self._shakes_hands = False
            data = self.sock.recv(READ)
        except BlockingIOError:
            return []
        except OSError as error:
            if self._encrypted and self._waits(error):
                return []
            raise ChannelClosed from error
        if not data:
            raise ChannelClosed
        self._buffer += data
        return list(self._frames())

    def _waits(self, error: OSError) -> bool:
        """Tell whether TLS only waits for more bytes.

        :raises BadFrame: the other end does not speak TLS.
        """
        import ssl

        if isinstance(error, (ssl.SSLWantReadError, ssl.SSLWantWriteError)):
            return True
        if self._shakes_hands and not isinstance(error, (ssl.SSLEOFError, ConnectionError)):
            raise BadFrame("bytes that are not a TLS handshake") from error
        return False

    def has_more(self) -> bool:
        """Return True if data, or the end of the stream, waits to be received."""
        looked = select.poll()  # select() fails for descriptors from 1024 on
        looked.register(self.sock, select.POLLIN)
        return bool(looked.poll(0))

    def _frames(self) -> Iterator[tuple[int, bytes]]:
        while len(self._buffer) >= _HEAD.size:
            kind, length = _HEAD.unpack_from(self._buffer)
            if length > self.takes.get(kind, -1):
                raise BadFrame(f"a frame of kind {kind} and {length} bytes")
            end = _HEAD.size + length
            if len(self._buffer) < end:
                return
            yield kind, bytes(self._buffer[_HEAD.size : end])
            del self._buffer[:end]

    def silence(self) -> float:
        """Return for how many seconds the other end's kernel owes an answer; 0: it owes none.

        A lost host closes no connection, so only its silence shows the loss. The kernel of a
        stopped process still answers, but this kernel asks a full receiver only every two minutes.
        """
        try:
            info = self.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _UNANSWERED.size)
        except OSError:
            return 0.0
        resent, probes, milliseconds = _UNANSWERED.unpack(info)
        return milliseconds / 1000 if resent or probes else 0.0

    def is_lost(self) -> bool:
        """Return True if the other end's host counts as lost."""
        return self.silence() > self.most_silence

    def has_arrived(self) -> bool:
        """Return True if the other end's kernel has everything that was sent.

        A sender waits for this before it ends: if data arrives at a closed socket, the kernel drops
        the socket's unsent data.
        """
        unsent = fcntl.ioctl(self.sock, termios.TIOCOUTQ, bytes(4))
        return not any(unsent)

    def close(self) -> None:
        self.sock.close()


def fields(data: bytes, types: Mapping[str, type]) -> dict[str, Any]:
    """Return the fields of a JSON object that ``types`` names.

    :raises BadFrame: ``data`` is no JSON object, or a field is missing or of another type.
    """
    try:
        value = json.loads(data)
        found = {name: value[name] for name in types}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        names = ", ".join(types)
        raise BadFrame(f"a frame that is not a JSON object with the fields {names}") from error
    wrong = [name for name, kind in types.items() if type(found[name]) is not kind]
    if wrong:
        raise BadFrame(f"a JSON object with values of wrong types in the fields {', '.join(wrong)}")
    return found


def _probe(sock: socket.socket) -> None:
    """Let the kernel probe an idle peer, because Channel.silence needs the peer's answers."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 127)


class Invitation(namedtuple("Invitation", ("token", "fingerprint", "addresses"))):
    """The launcher's addresses, and what proves that agent and launcher belong to one job.

    ``fingerprint`` belongs to the launcher's TLS certificate; "": no encryption. Each address is
    ADDRESS:PORT.
    """

    def __str__(self) -> str:
        secret = f"{self.token}/{self.fingerprint}" if self.fingerprint else self.token
        return f"{secret}@{','.join(self.addresses)}"


def invitation_of(text: str) -> Invitation:
    """Parse the text that ``str(invitation)`` returned.

    >>> invitation_of("123/abc@10.0.0.1:99,127.0.0.1:98").addresses
    ['10.0.0.1:99', '127.0.0.1:98']
    """
    secret, _, addresses = text.partition("@")
    token, _, fingerprint = secret.partition("/")
    return Invitation(token, fingerprint, addresses.split(","))


def connect(invitation: Invitation, timeout: float = 10.0) -> Channel:
    """Connect to the launcher by the first of its addresses that answers."""
    failures = []
    for where in invitation.addresses:
        address, _, port = where.rpartition(":")
        try:
            sock = socket.create_connection((address, int(port)), timeout)
            if invitation.fingerprint:
                from hvdlite.launch import encryption

                sock = encryption.to_launcher(sock, invitation.fingerprint)
        except OSError as error:
            failures.append(f"{where}: {error.strerror or error}")
            continue
        return Channel(sock, FROM_LAUNCHER)
    raise ConnectionError("; ".join(failures))
