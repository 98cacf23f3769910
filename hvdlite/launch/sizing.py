"""Chooses the number of ranks and threads for this machine, if the user does not."""

import contextlib
import os
from typing import Optional, Tuple

from hvdlite.core.files import text_of

MOST = 8  # ranks, because each has the model in memory; other cores become threads


def sensible(cores: int, threads: Optional[int] = None) -> Tuple[int, int]:
    """Return the ranks, and the threads of each, that fill the cores.

    :param threads: of each rank, if the user has chosen.

    >>> sensible(2), sensible(64), sensible(64, threads=4), sensible(1, threads=4)
    ((2, 1), (8, 8), (16, 4), (1, 4))
    """
    if threads is None:
        ranks = min(cores, MOST)
        return ranks, cores // ranks
    return max(cores // threads, 1), threads


def cores() -> int:
    """Return the cores that this process may use: hardware threads of a core count once."""
    allowed = os.sched_getaffinity(0)
    physical = {_core_of(cpu) for cpu in allowed}
    return max(min(len(physical), quota()), 1)


def _core_of(cpu: int) -> Tuple[str, ...]:
    folder = f"/sys/devices/system/cpu/cpu{cpu}/topology"
    with contextlib.suppress(OSError):
        return tuple(text_of(f"{folder}/{name}") for name in ("physical_package_id", "core_id"))
    return (str(cpu),)


def quota() -> int:
    """Return the cores' worth of time that a container may use."""
    with contextlib.suppress(OSError, ValueError):
        quota, period = text_of("/sys/fs/cgroup/cpu.max").split()
        return int(quota) // int(period)  # ValueError: "max"
    return os.cpu_count() or 1


def here(threads: Optional[str]) -> Tuple[int, int, str]:
    """Return the ranks of this machine, the threads of each, and a sentence that says why.

    :param threads: the user's own OMP_NUM_THREADS.
    """
    given = (threads or "").partition(",")[0]  # 4,2: of the outer loop, of one in it
    own = int(given) if given.isdecimal() and int(given) else None
    found = cores()
    ranks, each = sensible(found, own)
    whom = "your " if own else ""
    why = f"ranks: {ranks}, for {found} cores, each with {whom}OMP_NUM_THREADS={each}"
    return ranks, each, f"{why} (-n N: N ranks)"
