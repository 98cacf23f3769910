"""Places the processes of a job on its hosts."""

from typing import List, Tuple

from hvdlite.machine.hosts import Host


def place(hosts: List[Host], processes: int) -> List[Tuple[str, int]]:
    """Return the number of processes of each host; a host's processes have consecutive numbers.

    >>> place([Host("a"), Host("b")], 5)
    [('a', 3), ('b', 2)]
    >>> place([Host("a", 4), Host("b", 4)], 5)
    [('a', 4), ('b', 1)]
    """
    placed, left = [], processes
    for i, host in enumerate(hosts):
        share = -(-left // (len(hosts) - i)) if host.slots is None else host.slots
        count = min(left, share)
        left -= count
        if count:
            placed.append((host.name, count))
    if left:
        raise ValueError(
            f"{processes} processes do not fit on {processes - left} slots: give the hosts more "
            "slots, or start fewer processes"
        )
    return placed


def place_servers(
    hosts: List[Host], placed: List[Tuple[str, int]], servers: int
) -> List[Tuple[str, List[str]]]:
    """Return the kinds of processes on each host of a job with servers, in order.

    The scheduler is on the first host. Hosts get servers in turn, first the hosts without workers
    in ``placed``; servers take no slots.

    >>> place_servers([Host("a"), Host("b")], [("a", 1), ("b", 1)], 1)
    [('a', ['scheduler', 'server', 'worker']), ('b', ['worker'])]
    >>> place_servers([Host("a", 2), Host("b", 2), Host("c", 2)], [("a", 2)], 1)
    [('a', ['scheduler', 'worker', 'worker']), ('b', ['server'])]
    """
    workers = dict(placed)
    in_turn = sorted((host.name for host in hosts), key=workers.__contains__)
    serving = [in_turn[i % len(in_turn)] for i in range(servers)]
    kinds = [
        (name, ["server"] * serving.count(name) + ["worker"] * workers.get(name, 0))
        for name in (host.name for host in hosts)
    ]
    kinds[0][1].insert(0, "scheduler")
    return [(name, of_host) for name, of_host in kinds if of_host]
