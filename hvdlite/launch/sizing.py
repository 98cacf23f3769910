"""Chooses the number of ranks and threads for this machine, unless the user gives the numbers."""

import contextlib
import os
from typing import Optional, Tuple

from hvdlite.machine import nodes
from hvdlite.machine.files import text_of

# Most ranks on a host, because each rank has the model in memory; the ranks' threads use all cores.
# A host with more NUMA nodes than this gets a rank for each node.
MOST = 8


def sensible(cores: int, threads: Optional[int] = None, nodes: int = 1) -> Tuple[int, int]:
    """Return the ranks, and the threads of each, that fill the cores.

    :param threads: the user's number of threads for each rank; None: choose.
    :param nodes: the number of NUMA nodes. With more ranks than nodes, all nodes get the same
        number of ranks.

    >>> sensible(2), sensible(64), sensible(64, threads=4), sensible(1, threads=4)
    ((2, 1), (8, 8), (16, 4), (1, 4))
    >>> sensible(48, nodes=3), sensible(12, threads=8, nodes=2), sensible(64, nodes=16)
    ((6, 8), (1, 8), (16, 4))
    """
    ranks = min(cores, max(MOST, nodes)) if threads is None else max(cores // threads, 1)
    ranks -= ranks % nodes if ranks > nodes else 0
    return ranks, threads or cores // ranks


def quota() -> int:
    """Return how many cores' worth of CPU time this container may use."""
    with contextlib.suppress(OSError, ValueError):
        quota, period = text_of("/sys/fs/cgroup/cpu.max").split()
        return int(quota) // int(period)  # quota "max" (no limit) raises ValueError
    return os.cpu_count() or 1


def of_host(threads: Optional[str]) -> Tuple[int, int, str]:
    """Return the ranks of this machine, the threads of each, and a sentence that says why.

    :param threads: the user's own OMP_NUM_THREADS.
    """
    outer = (threads or "").partition(",")[0]  # "4,2": the first number is for outer loops
    own = int(outer) if outer.isdecimal() and int(outer) else None
    by_node = nodes.nodes(os.sched_getaffinity(0))
    found = max(min(sum(map(len, by_node)), quota()), 1)
    ranks, each = sensible(found, own, len(by_node))
    whom = "your " if own else ""
    where = f" on {len(by_node)} NUMA nodes" if len(by_node) > 1 else ""
    why = f"ranks: {ranks}, for {found} cores{where}, each with {whom}OMP_NUM_THREADS={each}"
    return ranks, each, f"{why} (-n N: N ranks)"
