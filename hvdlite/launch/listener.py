"""Accepts the agents' connections; a connection without the job's token is dropped.

The launcher reports each reason to the user once. A connection without the token may send little
and is closed soon, so it delays no agent. The launcher listens on networks that the user allows.
"""

import errno
import os
import selectors
import socket
import time
from _operator import _compare_digest  # not from hmac, whose import loads OpenSSL and takes 3 ms
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Set

from hvdlite.launch import channel
from hvdlite.launch.channel import BadFrame, Channel, ChannelClosed
from hvdlite.launch.output import tell
from hvdlite.machine import probe

if TYPE_CHECKING:
    from hvdlite.launch.encryption import Key

PATIENCE = 10.0  # seconds for a connection to send its HELLO
# most open connections that have not sent a HELLO, in addition to one for each agent of the job
MOST_STRANGERS = 256
ROOM_PAUSE = 0.05  # seconds to wait if no file descriptor is left, nor a connection to drop

NOT_ENCRYPTED = (
    "hvdliterun: WARNING: messages between this host and the others, with all environment "
    "variables, are NOT ENCRYPTED: install the command openssl here"
)
_HELLO = {"token": str, "rank": int, "host": str, "address": str, "port": int}
_HELLO.update(versions=dict, allowed=list)
Hello = Dict[str, Any]


def new_key() -> "Optional[Key]":
    """Return the key for messages between hosts; if there is none, warn and return None."""
    from hvdlite.launch import encryption

    key = encryption.new_key()
    if not key:
        tell(NOT_ENCRYPTED)
    return key


class Listener:
    """Listens at the given addresses; ``welcome`` gets each agent's channel and its HELLO.

    ``welcome`` takes over the channel; ``welcome`` raises BadFrame if the HELLO is wrong.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        addresses: List[str],
        processes: int,
        key: "Optional[Key]",
        welcome: Callable[[Channel, Hello], None],
    ):
        self._selector, self._key, self._welcome = selector, key, welcome
        self._token = os.urandom(16).hex()
        self._most = processes + MOST_STRANGERS
        # connections without a HELLO yet and their times of arrival, oldest first
        self._strangers: Dict[Channel, float] = {}
        self._reported: Set[str] = set()
        self._listeners = [socket.create_server((a, 0), backlog=processes) for a in addresses]
        for listener in self._listeners:
            listener.setblocking(False)
            selector.register(listener, selectors.EVENT_READ, self._accept)

    def invitation(self) -> channel.Invitation:
        """Return the token, fingerprint and addresses that an agent needs to connect."""
        addresses = ["{}:{}".format(*listener.getsockname()) for listener in self._listeners]
        fingerprint = self._key.fingerprint if self._key else ""
        return channel.Invitation(self._token, fingerprint, addresses)

    def drop_the_silent(self) -> None:
        """Drop the connections that have not sent a HELLO in time."""
        due = time.monotonic() - PATIENCE
        for link in [link for link, since in self._strangers.items() if since < due]:
            self._drop(link, "it sent no message of this job")

    def complain(self, link: Channel, why: object) -> None:
        try:
            peer = link.sock.getpeername()[0]
        except OSError:
            peer = "somewhere"
        kind = str(why).split(":")[0]
        if kind not in self._reported:
            self._reported.add(kind)
            tell(f"hvdliterun: dropped a connection from {peer}: {why} (reported once)")

    def close(self) -> None:
        for link in self._strangers:
            link.close()
        for listener in self._listeners:
            listener.close()

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock = listener.accept()[0]
            if self._key:  # the TLS handshake comes later
                sock = self._key.context.wrap_socket(sock, True, do_handshake_on_connect=False)
            link = Channel(sock, channel.FROM_STRANGERS)
        except OSError as error:  # no descriptor is left, or the peer has closed
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._make_room()
            return
        self._strangers[link] = time.monotonic()
        self._selector.register(link.sock, selectors.EVENT_READ, lambda _: self._receive(link))
        if len(self._strangers) > self._most:
            self._drop(next(iter(self._strangers)), "too many connections send nothing")

    def _make_room(self) -> None:
        """Free a descriptor, because a connection that can't be accepted keeps the loop busy."""
        if self._strangers:
            self._drop(next(iter(self._strangers)), "no file descriptor is left for more")
        else:
            time.sleep(ROOM_PAUSE)

    def _receive(self, link: Channel) -> None:
        # the connection was just dropped to make room for a newer one
        if link not in self._strangers:
            return
        try:
            frames = link.receive()
            if frames:
                self._let_in(link, frames[0][1])
        except BadFrame as why:
            self._drop(link, f"it sent what no process of this job sends: {why}")
        except ChannelClosed:
            self._drop(link)

    def _let_in(self, link: Channel, data: bytes) -> None:
        hello = channel.fields(data, _HELLO)
        token = hello.pop("token").encode(errors="replace")
        if not _compare_digest(token, self._token.encode()):
            return self._drop(link, "it does not know the token of this job")
        link.takes = channel.FROM_AGENTS
        self._selector.unregister(link.sock)
        self._welcome(link, hello)
        del self._strangers[link]

    def _drop(self, link: Channel, why: Optional[str] = None) -> None:
        if why:
            self.complain(link, why)
        del self._strangers[link]
        if link.sock in self._selector.get_map():
            self._selector.unregister(link.sock)
        link.close()


LOOPBACK = "127.0.0.1"


def listening_addresses(remote: bool, wanted: List[str], hosts: List[str]) -> List[str]:
    """Return this host's addresses for agents; the last one is the loopback, for local agents.

    :param remote: the job has other hosts.
    :param wanted: the networks that the user allows; empty: all of them.
    :param hosts: the known hosts of the job; only addresses on a route to them are returned.
    """
    if not remote:
        return [LOOPBACK]
    own = probe.interfaces().items()
    allowed = [address for name, address in own if not wanted or probe.is_on(name, address, wanted)]
    # source_towards() returns None if only ssh can resolve the host's name
    ways = [probe.source_towards(host) for host in hosts]
    if ways and not wanted and None not in ways:
        allowed = [address for address in allowed if address in ways]
    return [*(a for a in allowed if not a.startswith("127.")), LOOPBACK]


def unknown_interface(wanted: List[str]) -> Optional[str]:
    """Return the first interface or network (10.1.0.0/16) that this host lacks, or None."""
    own = probe.interfaces().items()
    lacking = (w for w in wanted if not any(probe.is_on(n, a, [w]) for n, a in own))
    return next(lacking, None)
