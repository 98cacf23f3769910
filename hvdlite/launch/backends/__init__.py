"""The backends that place and start processes, one a file; adding one is a file and a row here."""

from functools import partial
from typing import Callable, Dict, NamedTuple

from hvdlite.launch import mpirun
from hvdlite.launch.backends import k8s, sge, slurm, yarn
from hvdlite.launch.job import Job, Plan


class Backend(NamedTuple):
    """A backend: ``plan`` returns the command; ``inside`` tells if this is one of its jobs."""

    plan: Callable[[Job], Plan]
    takes_hosts: bool
    inside: Callable[[], bool] = lambda: False


BACKENDS: Dict[str, Backend] = {
    "local": Backend(partial(mpirun.plan, where="here"), takes_hosts=False),
    "ssh": Backend(mpirun.plan_over_ssh, takes_hosts=True),
    # mpirun with the site's own settings; it finds the hosts itself, or takes the given ones.
    "mpi": Backend(partial(mpirun.plan, where=""), takes_hosts=True),
    "slurm": Backend(slurm.plan, takes_hosts=False, inside=slurm.inside),
    "sge": Backend(sge.plan, takes_hosts=False, inside=sge.inside),
    "yarn": Backend(yarn.plan, takes_hosts=False),
    "k8s": Backend(k8s.plan, takes_hosts=False),
}


def default(hosts_given: bool) -> str:
    """Return the backend for a user who names no launcher."""
    if hosts_given:
        return "ssh"
    return next((name for name, backend in BACKENDS.items() if backend.inside()), "local")
