"""The engines that place and start processes, one a file; adding one is a file and a row here."""

from typing import Callable, Dict, NamedTuple

from hvdlite.launch.engines import k8s, local, mpi, sge, slurm, ssh, yarn
from hvdlite.launch.job import Job, Plan


class Engine(NamedTuple):
    """How a job is run: ``plan`` gives the command; ``inside`` tells if it gave us this host."""

    plan: Callable[[Job], Plan]
    takes_hosts: bool
    inside: Callable[[], bool] = lambda: False


ENGINES: Dict[str, Engine] = {
    "local": Engine(local.plan, takes_hosts=False),
    "ssh": Engine(ssh.plan, takes_hosts=True),
    "mpi": Engine(mpi.plan, takes_hosts=True),
    "slurm": Engine(slurm.plan, takes_hosts=False, inside=slurm.inside),
    "sge": Engine(sge.plan, takes_hosts=False, inside=sge.inside),
    "yarn": Engine(yarn.plan, takes_hosts=False),
    "k8s": Engine(k8s.plan, takes_hosts=False),
}


def default(hosts_given: bool) -> str:
    """Choose what a user who names no launcher means."""
    if hosts_given:
        return "ssh"
    return next((name for name, engine in ENGINES.items() if engine.inside()), "local")
