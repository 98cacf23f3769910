"""What the launcher tells an agent about its rank: variables, folder and cores."""

import json
from typing import Any, Dict, List, Optional, Tuple

from hvdlite.core import agent_protocol, member
from hvdlite.launch import environment
from hvdlite.launch.job import Job, current_folder
from hvdlite.launch.ranks import Rank, Role, is_present


def role_environment(
    role: Role, workers: int, servers: int, root: str, port: int
) -> Dict[str, str]:
    """Return the DMLC_ variables of a role; the scheduler is at ``root`` and ``port``."""
    return {
        "DMLC_ROLE": role.kind,
        "DMLC_TASK_ID": str(role.index),
        "DMLC_NUM_WORKER": str(workers),
        "DMLC_NUM_SERVER": str(servers),
        "DMLC_PS_ROOT_URI": root,
        "DMLC_PS_ROOT_PORT": str(port),
        "DMLC_JOB_CLUSTER": "hvdlite",
    }


def assign(rank: Rank, ranks: List[Rank], job: Job) -> Dict[str, Any]:
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
    """Return the variables of an elastic job's rank; a replacement gets the other ranks' ports."""
    found = {**torch_environment(rank, ranks), agent_protocol.ELASTIC_ADDRESS: rank.address}
    if rank.takes_part:
        return found
    ports = {r.number: list(r.open_port.values()) for r in ranks if r.open_port and is_present(r)}
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    description = json.dumps({"number": rank.number, "ports": ports})
    return {**found, **alone, agent_protocol.REPLACEMENT: description}
