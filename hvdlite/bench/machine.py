"""The machine's memory bandwidth and description, and a process's use of memory and CPU."""

import os
import platform
import resource
import time
from typing import Dict, List

import numpy as np

from hvdlite.core import shared_memory
from hvdlite.core.world import World

STREAM_BYTES = 96 << 20  # bytes of one array, more than any cache holds


def memory_bandwidth(world: World) -> float:
    """Return bytes per second that all ranks together read and write. Collective.

    As in STREAM (https://www.cs.virginia.edu/stream/): the best repetition of two kernels,
    ``a += b``, which moves three arrays, and ``a = b``, which moves two.
    """
    a, b = np.ones(STREAM_BYTES // 4, np.float32), np.ones(STREAM_BYTES // 4, np.float32)

    def add() -> None:
        np.add(a, b, out=a)

    def copy() -> None:
        np.copyto(a, b)

    best = 0.0
    for kernel, arrays in ((add, 3), (copy, 2)):
        for _ in range(5):
            world.barrier()
            start = time.perf_counter()
            kernel()
            slowest = max(world.allgather(time.perf_counter() - start))
            best = max(best, world.size * arrays * STREAM_BYTES / slowest)
    return best


def peak_memory() -> int:
    """Return the largest number of bytes that this process had in memory, with shared memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def own_memory() -> int:
    """Return the bytes in memory (PSS: a page that n processes share counts 1/n), after a trim."""
    shared_memory.trim_heap()
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:"))


def idle_share(world: World, seconds: float) -> List[float]:
    """Return the share of a core that each rank's threads use without work. Collective."""
    world.barrier()
    time.sleep(0.3)  # so that earlier work ends
    cpu, start = time.process_time(), time.perf_counter()
    time.sleep(seconds)
    share = (time.process_time() - cpu) / (time.perf_counter() - start)
    return world.allgather(share)


def describe() -> Dict[str, str]:
    """Return the processor, the cores this process may use, the memory and the system."""
    gigabytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return {
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{gigabytes:.0f} GB",
        "system": f"Linux {platform.release().split('-')[0]}, Python {platform.python_version()}",
    }


def _processor() -> str:
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith(("model name", "Model")):
                return line.partition(":")[2].strip()
    return platform.machine()
