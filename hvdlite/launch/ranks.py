"""The launcher's record of each rank, and the hosts of the ranks.

In mode ps a rank is a scheduler, a server or a worker of MXNet's parameter server. All run the
user's command, and MXNet reads the process's role from DMLC_ variables. In a scheduler or server
``import mxnet`` does not return: MXNet serves there and then exits.
"""

import itertools
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from hvdlite.launch.channel import LATE, Channel
from hvdlite.launch.failure import Ending
from hvdlite.launch.job import Job
from hvdlite.machine.hosts import Host

JUST = 20.0  # for so many seconds, a failure makes a host's short silence count as a loss; chosen


class Role(NamedTuple):
    """A role in the job; ``index`` counts from 0 within its kind, as ``kv.rank`` does."""

    kind: str
    index: int  # type: ignore[assignment]  # tuple has a method of that name

    @property
    def label(self) -> str:
        return self.kind if self.kind == "scheduler" else f"{self.kind} {self.index}"


def roles_of(ranks: List["Rank"], job: Job) -> List[Role]:
    """Return the role of each rank in mode ps.

    Hosts get servers in turn, because a host's network link limits its servers. ``index`` must be
    MXNet's own number: MXNet's scheduler numbers each kind by descending address, then by port.

    >>> ranks = [Rank(n, None, "a", "10.0.0.1", port, {}) for n, port in enumerate((7, 9, 8))]
    >>> ranks += [Rank(n, None, "b", "10.0.0.2", port, {}) for n, port in enumerate((5, 6), 3)]
    >>> [role.label for role in roles_of(ranks, Job([], 2, servers=2))]
    ['scheduler', 'server 1', 'worker 1', 'server 0', 'worker 0']
    """
    if job.hosts:
        kinds = [kind for _, of_host in _servers_placed(job) for kind in of_host]
    else:  # the backend has chosen the hosts
        kinds = _kinds([rank.host for rank in ranks], job.servers)
    by_port = sorted(range(len(ranks)), key=lambda rank: ranks[rank].port)
    in_order = sorted(by_port, key=lambda rank: ranks[rank].address, reverse=True)
    of_kind = {kind: [rank for rank in in_order if kinds[rank] == kind] for kind in set(kinds)}
    return [Role(kind, of_kind[kind].index(rank)) for rank, kind in enumerate(kinds)]


def _kinds(hosts: List[str], servers: int) -> List[str]:
    """Return the kind of each rank, by its host; rank 0 is the scheduler."""
    others = range(1, len(hosts))
    names = dict.fromkeys(hosts)  # the hosts in the order of their ranks
    of_host = [[rank for rank in others if hosts[rank] == name] for name in names]
    in_turn = filter(None, itertools.chain(*itertools.zip_longest(*of_host)))
    serving = set(itertools.islice(in_turn, servers))
    return ["scheduler", *("server" if rank in serving else "worker" for rank in others)]


class Rank:
    """One process of the job and the connection to its agent."""

    def __init__(
        self,
        number: int,
        link: Channel,
        host: str,
        address: str,
        port: int,  # a port that is free on its host
        versions: Dict[str, Optional[str]],
        allowed: Sequence[int] = (),  # hardware threads on which the agent may run
    ):
        self.number, self.link, self.versions, self.allowed = number, link, versions, allowed
        self.host, self.address, self.port = host, address, port
        self.role: Optional[Role] = None  # the rank's role in mode ps
        self.ending: Optional[Ending] = None
        self.clean = False  # True: its program has ended and nothing of it is left
        self.result: Optional[bytes] = None  # the rank's result of hvdlite.run
        self.takes_part = True  # False: a replacement in an elastic job that has not joined yet
        self.open_port: Optional[Dict[str, Any]] = None  # elastic: the rank's address and port
        self.given_up = False  # True: the other ranks go on, or end, without this rank

    @property
    def label(self) -> str:
        return self.role.label if self.role else str(self.number)


def placement(job: Job) -> List[Tuple[str, int]]:
    """Return each host with the number of its processes, in the order of the processes' numbers."""
    if job.mode == "ps":
        return [(host, len(kinds)) for host, kinds in _servers_placed(job)]
    return place(job.hosts, job.ranks)


def _servers_placed(job: Job) -> List[Tuple[str, List[str]]]:
    return place_servers(job.hosts, place(job.hosts, job.ranks), job.servers)


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


def hosts_of(numbers: Iterable[int], job: Job) -> List[str]:
    """Return the hosts of these processes, as the user named them; empty: the backend chose."""
    by_number = [host for host, count in placement(job) for _ in range(count)] if job.hosts else []
    return sorted({by_number[number] for number in numbers if number < len(by_number)})


def version_difference(
    host: str, theirs: Dict[str, Optional[str]], ours: Dict[str, Optional[str]]
) -> Optional[str]:
    """Return a sentence about the first version that differs from this host's, or None."""
    for name, version in ours.items():
        if theirs.get(name) != version:
            their_version = f"{name} {theirs[name]}" if theirs.get(name) else f"no {name}"
            our_version = f"{name} {version}" if version else f"no {name}"
            return (
                f"{host} has {their_version}, but this host has {our_version}: install the same "
                "version on every host"
            )
    return None


def lost_hosts(ranks: List[Rank], job: Job) -> List[str]:
    lost = {rank.host for rank in ranks if rank.ending and rank.ending.silence}
    return hosts_of([rank.number for rank in ranks if rank.host in lost], job)


def silent(ranks: List[Rank], limit: float, now: float) -> List[Tuple[Rank, float]]:
    """Return the ranks whose hosts have been silent for too long, and for how many seconds.

    If a rank has just failed, a short silence is enough, because the silence explains the failure.

    :param limit: allowed seconds of silence.
    :param now: seconds since the start.
    """
    ends = [rank.ending for rank in ranks if rank.ending]
    if any(end.failed and end.after > now - JUST for end in ends):
        limit = LATE
    asked = [(rank, rank.link.silence()) for rank in ranks if rank.ending is None]
    return [(rank, silence) for rank, silence in asked if silence > limit]


def is_present(rank: Rank) -> bool:
    """Return True if the rank trains."""
    return rank.takes_part and rank.ending is None


def still_needed(ranks: List[Rank]) -> List[Rank]:
    """Return the ranks that still train. Servers end by themselves after the workers.

    The other ranks no longer wait for a rank with ``given_up``, so it has no job to join.
    """
    return [rank for rank in _training(ranks) if is_present(rank) and not rank.given_up]


def have_finished(ranks: List[Rank]) -> bool:
    """Tell whether all ranks that train have ended by themselves and without failure."""
    endings = [r.ending for r in _training(ranks)]
    return bool(endings) and all(e and not (e.ended or e.failed) for e in endings)


def _training(ranks: List[Rank]) -> List[Rank]:
    return [r for r in ranks if r.role is None or r.role.kind == "worker"]
