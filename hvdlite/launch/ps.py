"""Roles for MXNet's parameter server: which process is the scheduler, a server or a worker.

All processes run the user's command; in a scheduler or server ``import mxnet`` serves and then
exits. MXNet reads the role from DMLC_ variables.
"""

from typing import Dict, List, NamedTuple


class Place(NamedTuple):
    """A process's host name, the address that MXNet uses, and a free port."""

    host: str
    address: str
    port: int


class Role(NamedTuple):
    """A role in the job; ``index`` counts from 0 within its kind, as ``kv.rank`` does."""

    kind: str
    index: int  # type: ignore[assignment]  # tuple has a method of that name

    @property
    def label(self) -> str:
        return self.kind if self.kind == "scheduler" else f"{self.kind} {self.index}"


def assign(places: List[Place], servers: int) -> List[Role]:
    """Return the role of each rank, given each rank's host, address and port.

    Hosts get servers in turn, because a host's network link limits its servers. MXNet's scheduler
    numbers each kind by address, the last first, then by port.

    >>> places = [Place("a", "10.0.0.1", p) for p in (7, 9, 8)]
    >>> places += [Place("b", "10.0.0.2", p) for p in (5, 6)]
    >>> [role.label for role in assign(places, 2)]
    ['scheduler', 'server 1', 'worker 1', 'server 0', 'worker 0']
    """
    kinds = _kinds([place.host for place in places], servers)
    by_port = sorted(range(len(places)), key=lambda rank: places[rank].port)
    in_order = sorted(by_port, key=lambda rank: places[rank].address, reverse=True)
    of_kind = {kind: [rank for rank in in_order if kinds[rank] == kind] for kind in set(kinds)}
    return [Role(kind, of_kind[kind].index(rank)) for rank, kind in enumerate(kinds)]


def _kinds(hosts: List[str], servers: int) -> List[str]:
    free: Dict[str, List[int]] = {}
    for rank, host in enumerate(hosts):
        free.setdefault(host, []).append(rank)
    scheduler, queue = 0, [0]
    free[hosts[0]].remove(scheduler)
    while len(queue) <= servers:
        for ranks in free.values():
            if ranks and len(queue) <= servers:
                queue.append(ranks.pop(0))
    serving = set(queue[1:])
    kinds = ["server" if rank in serving else "worker" for rank in range(len(hosts))]
    kinds[scheduler] = "scheduler"
    return kinds


def environment(role: Role, workers: int, servers: int, root: str, port: int) -> Dict[str, str]:
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
