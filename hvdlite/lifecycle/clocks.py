"""How far the monotonic clocks of a job's hosts are apart, by messages there and back."""

import time
from typing import Dict, Sequence, Tuple

_EXCHANGES = 8
_TAG = 32_766  # below that of lifecycle.job


def offset_to_first(comm, hosts: Sequence[str]) -> Tuple[float, float]:
    """Return how many seconds rank 0's clock is ahead of this rank's, and the error at most.

    Collective. The first rank of each host exchanges messages with rank 0; the exchange that took
    the shortest time counts, and the error is half of it. Clocks that no NTP steers may drift by
    another 50 us a second afterwards. Ranks of rank 0's host have its clock: 0, 0.
    """
    firsts: Dict[str, int] = {}
    for rank, host in enumerate(hosts):
        firsts.setdefault(host, rank)
    others = [rank for rank in firsts.values() if rank]
    if not others:
        return 0.0, 0.0
    if comm.rank == 0:
        for other in others:
            for _ in range(_EXCHANGES):
                comm.recv(source=other, tag=_TAG)
                comm.send(time.monotonic(), dest=other, tag=_TAG)
    measured = _measure(comm) if comm.rank in others else (0.0, 0.0)
    return comm.allgather(measured)[firsts[hosts[comm.rank]]]


def _measure(comm) -> Tuple[float, float]:
    trips = []
    for _ in range(_EXCHANGES):
        begin = time.monotonic()
        comm.send(None, dest=0, tag=_TAG)
        there = comm.recv(source=0, tag=_TAG)
        trips.append((time.monotonic() - begin, begin, there))
    seconds, begin, there = min(trips)
    return there - (begin + seconds / 2), seconds / 2
