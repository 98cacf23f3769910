"""The NUMA nodes of this host: their cores, and a process's threads and memory on them."""

import glob
import re
from typing import Collection, Dict, FrozenSet, List, Optional, Set, Tuple

from hvdlite.machine.files import text_of
from hvdlite.machine.processes import stat_of

SYSTEM, PROC = "/sys/devices/system", "/proc"
# memory on other nodes is reported if it has this many bytes, and this share of a process's memory
_LEAST, _SHARE = 64 << 20, 0.2
Core = FrozenSet[int]  # the numbers of the core's hardware threads


def cores(allowed: Collection[int]) -> List[Core]:
    """Return the cores with these hardware threads, in the order of their lowest thread."""
    found: Dict[Tuple[str, ...], Set[int]] = {}
    for thread in sorted(allowed):
        found.setdefault(_core_of(thread), set()).add(thread)
    return [frozenset(threads) for threads in found.values()]


def _core_of(thread: int) -> Tuple[str, ...]:
    folder = f"{SYSTEM}/cpu/cpu{thread}/topology"
    try:
        return tuple(text_of(f"{folder}/{name}") for name in ("physical_package_id", "core_id"))
    except OSError:
        return (str(thread),)


def nodes(allowed: Collection[int]) -> List[List[Core]]:
    """Return, for each NUMA node with some of these hardware threads, the node's cores.

    If the kernel does not tell the nodes, return one list with all cores.
    """
    found = [cores(numbers(text_of(f"{path}/cpulist")) & set(allowed)) for path in _folders()]
    return [each for each in found if each] or [cores(allowed)]


def _folders() -> List[str]:
    return sorted(glob.glob(f"{SYSTEM}/node/node[0-9]*"), key=lambda path: (len(path), path))


def numbers(text: str) -> Set[int]:
    """Parse a list of numbers in the kernel's format.

    >>> sorted(numbers("0-2,8")), numbers("")
    ([0, 1, 2, 8], set())
    """
    found: Set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def binding(local_rank: int, local_size: int, allowed: Collection[int]) -> Optional[List[Core]]:
    """Return the cores for a rank: its share of one NUMA node's cores.

    None: the host has one node, or fewer ranks than nodes, or more ranks than cores.
    """
    by_node = nodes(allowed) if len(_folders()) > 1 else []
    if not 1 < len(by_node) <= local_size:
        return None
    node_of = [rank * len(by_node) // local_size for rank in range(local_size)]
    if any(len(of_node) < node_of.count(node) for node, of_node in enumerate(by_node)):
        return None
    node = node_of[local_rank]
    ranks, of_node = node_of.count(node), by_node[node]
    index = local_rank - node_of.index(node)
    return of_node[index * len(of_node) // ranks : (index + 1) * len(of_node) // ranks]


def misplaced(process: int, has_just_started: bool = False) -> str:
    """Return a text if a process's threads or memory are on several NUMA nodes; else "".

    Libraries and memory that ranks share do not count. The kernel walks through all pages of the
    process, which delays the process's page faults.

    :param has_just_started: also report nodes where the threads have not run, but may run; and
        memory on other nodes, however small the process is.
    """
    if len(_folders()) < 2:
        return ""
    try:
        found = (_allowed if has_just_started else _used)(process)
        threads = _nodes_of(found)
        memory = _nodes_of_memory(process)
    except OSError:
        return ""
    if len(threads) > 1:
        may = "may " if has_just_started else ""
        return f"its threads {may}run on NUMA nodes {', '.join(map(str, sorted(threads)))}"
    whole = sum(memory.values())
    away = whole - sum(memory.get(node, 0) for node in threads)
    least = 1 if has_just_started else _LEAST
    if not threads or away < max(least, _SHARE * whole):
        return ""
    return (
        f"its threads run on NUMA node {min(threads)}, and {away / whole:.0%} of its memory "
        f"({away >> 20} MiB) is on other nodes"
    )


def report(rank: int, host: str, text: str) -> str:
    """Return a line for the user about a rank for which :func:`misplaced` returned a text."""
    return (
        f"rank {rank} on {host}: {text}: start the job with hvdliterun, with at least one rank for "
        "each NUMA node, and without --no-bind and --binding-args"
    )


def _used(process: int) -> Set[int]:
    """Return the hardware threads on which the process's threads last ran, except for idle ones.

    In ``stat_of``'s list, 11 and 12 are the CPU time in clock ticks, 36 is the hardware thread.
    """
    fields = [stat_of(path) for path in glob.glob(f"{PROC}/{process}/task/[0-9]*/stat")]
    ticks = [int(each[11]) + int(each[12]) for each in fields]
    return {int(each[36]) for each, used in zip(fields, ticks) if used > sum(ticks) / 100}


def _allowed(process: int) -> Set[int]:
    texts = map(text_of, glob.glob(f"{PROC}/{process}/task/[0-9]*/status"))
    lists = [re.findall(r"^Cpus_allowed_list:\s*(.*)", text, re.MULTILINE) for text in texts]
    return set().union(*(numbers(found) for each in lists for found in each))


def _nodes_of(hardware_threads: Set[int]) -> Set[int]:
    by_node = {int(path.rpartition("node")[2]): path for path in _folders()}
    lists = {node: numbers(text_of(f"{path}/cpulist")) for node, path in by_node.items()}
    return {node for node, threads in lists.items() if threads & hardware_threads}


def _nodes_of_memory(process: int) -> Dict[int, int]:
    """Return the bytes of private memory on each node, from numa_maps: proc_pid_numa_maps(5)."""
    found: Dict[int, int] = {}
    for line in text_of(f"{PROC}/{process}/numa_maps").splitlines():
        fields = dict(word.partition("=")[::2] for word in line.split())
        size = int(fields.get("kernelpagesize_kB", 4)) << 10
        for name, pages in fields.items() if "anon" in fields else ():
            if name[:1] == "N" and name[1:].isdigit():
                found[int(name[1:])] = found.get(int(name[1:]), 0) + size * int(pages)
    return found
