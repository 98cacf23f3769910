"""MXNet's parameter server: which process is the scheduler, a server or a worker.

All of them run the user's command; ``import mxnet`` in a scheduler or server serves and ends there.
MXNet learns its part from DMLC_ variables.
"""

from typing import Dict, List, NamedTuple


class Role(NamedTuple):
    """A part in the job; ``index`` counts from 0 among its kind."""

    kind: str
    index: int

    @property
    def label(self) -> str:
        return self.kind if self.kind == "scheduler" else f"{self.kind} {self.index}"


def assign(hosts: List[str], servers: int) -> List[Role]:
    """Deal the parts to ranks, given each rank's host.

    Servers go around the hosts, as each host's network link limits what its servers can take in.

    >>> [role.label for role in assign(["a", "a", "a", "b", "b"], 2)]
    ['scheduler', 'server 0', 'worker 0', 'server 1', 'worker 1']
    """
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
    return [Role(kind, kinds[:rank].count(kind)) for rank, kind in enumerate(kinds)]


def environment(role: Role, workers: int, servers: int, root: str, port: int) -> Dict[str, str]:
    """Return the DMLC_ variables of a part; ``root`` and ``port`` are the scheduler's."""
    return {
        "DMLC_ROLE": role.kind,
        "DMLC_TASK_ID": str(role.index),
        "DMLC_NUM_WORKER": str(workers),
        "DMLC_NUM_SERVER": str(servers),
        "DMLC_PS_ROOT_URI": root,
        "DMLC_PS_ROOT_PORT": str(port),
        "DMLC_JOB_CLUSTER": "hvdlite",
    }
