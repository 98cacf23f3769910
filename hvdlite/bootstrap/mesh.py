"""The mesh: connects each rank to each other rank, for the C library in a job without MPI."""

import math
import os
import socket
import time
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Set, Tuple

from hvdlite.bootstrap.acceptor import Acceptor, listen, reach
from hvdlite.bootstrap.arrivals import kept_apart
from hvdlite.bootstrap.exchange import Exchange
from hvdlite.bootstrap.handshake import DATA, MESSAGES, WATCH
from hvdlite.core.addresses import address_on
from hvdlite.core.listening import networks


class Mesh(NamedTuple):
    """The connections, by rank; the first three fields are the arrays of C's ``hvd_sockets``.

    The mesh owns the descriptors until :func:`streams` or HostWatch takes them.
    """

    lowest: List[int]  # for each rank, the lowest rank of the same host
    data: List[int]
    messages: List[int]
    watch: List[int]  # the sockets of HostWatch; -1: it has no socket to this rank
    hosts: List[str]  # the names of the ranks' hosts
    address: str = "127.0.0.1"  # where the other ranks reach this one


def connect(exchange: Exchange, patience: float = math.inf) -> Mesh:
    """Connect to each other rank by two streams. Collective.

    :param patience: seconds. If this rank can't reach a rank in this time, and rank 0 can, the
        unreached rank counts as dead; ``exchange.unreached`` then has its number.
    :raises HvdliteError: a rank can't be reached, or has ended.
    """
    hosts = exchange.allgather(_identity())
    lowest = [hosts.index(host) for host in hosts]
    streams: Dict[int, List[int]] = {kind: [-1] * exchange.size for kind in (DATA, MESSAGES, WATCH)}
    names = [host.partition(" ")[0] for host in hosts]
    mesh = Mesh(lowest, streams[DATA], streams[MESSAGES], streams[WATCH], names)
    if exchange.size == 1:
        return mesh
    try:
        return mesh._replace(address=_fill(exchange, streams, lowest, patience))
    except BaseException:
        close(mesh)
        raise


def close(mesh: Mesh) -> None:
    for descriptor in [*mesh.data, *mesh.messages, *mesh.watch]:
        if descriptor >= 0:
            os.close(descriptor)


def streams(mesh: Mesh) -> Dict[int, List[socket.socket]]:
    """Return the streams for the C library, by rank. They own their descriptors from now on."""
    return {
        rank: [socket.socket(fileno=stream) for stream in streams if stream >= 0]
        for rank, streams in enumerate(zip(mesh.data, mesh.messages))
    }


def _fill(
    exchange: Exchange, streams: Dict[int, List[int]], lowest: List[int], patience: float
) -> str:
    """Connect to lower ranks, accept higher ranks; return the address where this rank listened."""
    one_host = len(set(lowest)) == 1
    reached_at = exchange.allgather(None if one_host else _address(exchange, lowest))
    own = "127.0.0.1" if one_host else reached_at[exchange.rank] or reached_at[0]
    listener = listen([own], [0])
    ports = exchange.allgather(listener.getsockname()[:2])
    later = range(exchange.rank + 1, exchange.size)
    wait = exchange.waiting()
    wait.arrived.update(later)
    reaches: List[int] = []  # at most one rank, to which this rank connects now

    def missing() -> Set[int]:
        return set(reaches) or {rank for _, rank in expected - set(acceptor.peers)}

    def poll() -> None:
        waited = time.monotonic() - wait.began
        if waited > patience / 2:  # at half the time, because other ranks may give up first
            exchange.unreached = missing()
        exchange.poll()
        wait.poll()
        if waited > patience and exchange.unreached:
            raise kept_apart(exchange.rank, min(exchange.unreached), waited)

    expected = {(kind, rank) for rank in later for kind in _kinds(lowest, exchange.rank, rank)}
    acceptor = Acceptor(listener, exchange.hello(DATA), exchange.key, expected, poll)
    for rank in range(exchange.rank):
        reaches[:] = [rank]
        host, port = ports[rank]
        for kind in _kinds(lowest, rank, exchange.rank):
            hello = exchange.hello(kind)
            streams[kind][rank] = reach(host, [port], hello, exchange.key, poll)[0].detach()
        wait.arrived.add(rank)
    reaches.clear()
    wait.arrived -= set(later)
    for (kind, rank), connection in acceptor.wait().items():
        streams[kind][rank] = connection.detach()
    return own


def _kinds(lowest: List[int], lower: int, higher: int) -> Tuple[int, ...]:
    """Return the kinds of connections between two ranks.

    In a job of several hosts, WATCH connects the lowest ranks of the hosts with each other, and
    each of them with the other ranks of its host.

    :param lowest: by rank, the lowest rank of its host.
    """
    watched = lowest[lower] == lower and lowest[higher] in (lower, higher) and any(lowest)
    return (DATA, MESSAGES, WATCH) if watched else (DATA, MESSAGES)


def _address(exchange: Exchange, lowest: List[int]) -> Optional[str]:
    """Return the address at which other hosts reach this host; None: the address of rank 0."""
    wanted = networks(os.environ)
    if wanted:
        return address_on(wanted)
    if exchange.rank and lowest[exchange.rank] == 0:
        return None
    far = [c for rank, c in exchange.connections.items() if lowest[rank] != lowest[exchange.rank]]
    return far[0].getsockname()[0]


def _identity() -> str:
    """Return a text that is equal on two ranks only if they can share memory."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    try:
        space = os.stat("/proc/self/ns/pid").st_ino
        return f"{socket.gethostname()} {boot.read_text().strip()} {space}"
    except OSError:
        return socket.gethostname()
