"""Measures how far the clock of this host is from the clock of rank 0."""

import time
from typing import Dict, Sequence, Tuple

from hvdlite.core.world import World

_EXCHANGES = 8  # chosen; only the fastest counts, and rank 0 serves one host after another


def offset_to_first(world: World, hosts: Sequence[str]) -> Tuple[float, float]:
    """Return by how many seconds rank 0's clock is ahead of this rank's, and the largest error.

    Collective. The lowest rank of each host exchanges messages with rank 0. The result is that of
    the fastest exchange, and the error is half of its time. Afterwards clocks without NTP may drift
    by another 50 us per second. Ranks on rank 0's host use the same clock, and get 0, 0.
    """
    firsts: Dict[str, int] = {}
    for rank, host in enumerate(hosts):
        firsts.setdefault(host, rank)
    others = [rank for rank in firsts.values() if rank]
    if not others:
        return 0.0, 0.0
    if world.rank == 0:
        for other in others:
            for _ in range(_EXCHANGES):
                world.receive(other)
                world.send(time.monotonic(), other)
    measured = _measure(world) if world.rank in others else (0.0, 0.0)
    return world.allgather(measured)[firsts[hosts[world.rank]]]


def _measure(world: World) -> Tuple[float, float]:
    trips = []
    for _ in range(_EXCHANGES):
        begin = time.monotonic()
        world.send(None, 0)
        clock_of_0 = world.receive(0)
        trips.append((time.monotonic() - begin, begin, clock_of_0))
    seconds, begin, clock_of_0 = min(trips)
    return clock_of_0 - (begin + seconds / 2), seconds / 2
