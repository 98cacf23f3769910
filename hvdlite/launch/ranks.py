"""The launcher's record of each rank, and the check that all hosts are alike.

In mode ps a rank is a scheduler, a server or a worker of MXNet's parameter server. All run the
user's command, and MXNet reads its role from DMLC_ variables. In a scheduler or server
``import mxnet`` does not return: MXNet serves there and then exits.
"""

import itertools
import json
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from hvdlite.core import agent_protocol, member
from hvdlite.launch import environment
from hvdlite.launch.channel import LATE, Channel
from hvdlite.launch.failure import Ending
from hvdlite.launch.job import Job, current_folder
from hvdlite.launch.placement import place, place_servers

JUST = 20.0  # seconds for which a failure counts as recent; chosen


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
    MXNet's own number: its scheduler numbers each kind by descending address, then by port.

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


def role_environment(
    role: Role, workers: int, servers: int, root: str, port: int
) -> Dict[str, str]:
    """Return the DMLC_ variables of a role; ``root`` and ``port`` are the scheduler's."""
    return {
        "DMLC_ROLE": role.kind,
        "DMLC_TASK_ID": str(role.index),
        "DMLC_NUM_WORKER": str(workers),
        "DMLC_NUM_SERVER": str(servers),
        "DMLC_PS_ROOT_URI": root,
        "DMLC_PS_ROOT_PORT": str(port),
        "DMLC_JOB_CLUSTER": "hvdlite",
    }


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
        self.open_port: Optional[Dict[str, Any]] = None  # elastic job: its address and port
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


def assignment(rank: Rank, ranks: List[Rank], job: Job) -> Dict[str, Any]:
    """Return what an agent needs to start its program."""
    env = {**environment.forwarded(member.own_environment()), **environment.added(job)}
    local = [other for other in ranks if other.host == rank.host and other.ending is None]
    return {
        "env": {**env, **environment_of(rank, ranks, job)},
        "cwd": job.sync_dir or current_folder(),
        "local_size": len(local),
        "place": _place(rank, local, job),
        "host_timeout": job.host_timeout,
        "whole_flight": job.summary or job.metrics is not None,
    }


def _place(rank: Rank, local: List[Rank], job: Job) -> Optional[Tuple[int, int]]:
    """Return the rank's number on its host, and the number of ranks there; None: no binding.

    The launcher binds no rank if the user, mpirun or Slurm has bound ranks. The launcher does not
    bind a replacement, because it does not know the dead rank's cores.
    """
    bound = len({tuple(other.allowed) for other in local}) > 1
    if bound or job.unbound or job.binding or job.mode == "ps" or not rank.takes_part:
        return None
    return local.index(rank), len(local)


def environment_of(rank: Rank, ranks: List[Rank], job: Job) -> Dict[str, str]:
    """Return the variables of this rank or its role."""
    root = ranks[0]
    if rank.role is None and job.elastic:
        return elastic_environment(rank, ranks)
    if rank.role is None:
        return torch_environment(rank, ranks)
    parts = role_environment(rank.role, job.ranks, job.servers, root.address, root.port)
    # MXNet listens at PORT, and its scheduler numbers workers and servers by this port.
    own = {"DMLC_NODE_HOST": rank.address, "PORT": str(rank.port)}
    if rank.role.kind == "worker":
        own.update(_as_one_of_the_workers(rank, rank.role, ranks))
    return {**parts, **own, **job.env_of.get(rank.role.kind, {})}


def _as_one_of_the_workers(rank: Rank, role: Role, ranks: List[Rank]) -> Dict[str, str]:
    """Return the variables that make MXNet's workers ranks of hvdlite.

    The workers do not use MPI, because MPI would wait for the servers.
    """
    workers = [other for other in ranks if other.role and other.role.kind == role.kind]
    first = [other for other in workers if other.role and other.role.index == 0]
    # put worker 0 first, because the workers meet at the first rank's host
    workers.sort(key=lambda other: other not in first)
    return {**torch_environment(rank, workers), "RANK": str(role.index), member.TRANSPORT: "tcp"}


def torch_environment(rank: Rank, ranks: List[Rank]) -> Dict[str, str]:
    """Return torchrun's variables. RANK and WORLD_SIZE become stale when ranks die or join.

    MASTER_ADDR and MASTER_PORT keep the values that the user has set.
    """
    on_host = [other.number for other in ranks if other.host == rank.host]
    store = {"MASTER_ADDR": ranks[0].address, "MASTER_PORT": str(ranks[0].port)}
    return {
        "RANK": str(rank.number),
        "WORLD_SIZE": str(len(ranks)),
        "LOCAL_RANK": str(on_host.index(rank.number)),
        "LOCAL_WORLD_SIZE": str(len(on_host)),
        **{name: member.own_environment().get(name, value) for name, value in store.items()},
    }


def elastic_environment(rank: Rank, ranks: List[Rank]) -> Dict[str, str]:
    """Return the variables of an elastic job's rank; a replacement gets the others' addresses."""
    found = {**torch_environment(rank, ranks), agent_protocol.ELASTIC_ADDRESS: rank.address}
    if rank.takes_part:
        return found
    ports = {r.number: list(r.open_port.values()) for r in ranks if r.open_port and is_present(r)}
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    description = json.dumps({"number": rank.number, "ports": ports})
    return {**found, **alone, agent_protocol.REPLACEMENT: description}


def lost_hosts(ranks: List[Rank], job: Job) -> List[str]:
    """Return the lost hosts, by the names that the user gave."""
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

    A rank that the others have given up is stopped or hangs, and has no job that it could join.
    """
    return [rank for rank in _training(ranks) if is_present(rank) and not rank.given_up]


def have_finished(ranks: List[Rank]) -> bool:
    """Tell whether all ranks that train have ended by themselves and without failure."""
    endings = [r.ending for r in _training(ranks)]
    return bool(endings) and all(e and not (e.ended or e.failed) for e in endings)


def _training(ranks: List[Rank]) -> List[Rank]:
    return [r for r in ranks if r.role is None or r.role.kind == "worker"]
