"""The backends that place and start processes. A new backend needs a function and a row here."""

from functools import partial
from typing import Callable, Dict, NamedTuple

from hvdlite.launch import mpirun
from hvdlite.launch.backends import containers, sge, slurm
from hvdlite.launch.job import Command, Job


class Backend(NamedTuple):
    """How a backend starts a job; ``inside()``: True if hvdliterun runs in a job of the backend."""

    command: Callable[[Job], Command]
    takes_hosts: bool
    inside: Callable[[], bool] = lambda: False


BACKENDS: Dict[str, Backend] = {
    "local": Backend(partial(mpirun.command, where="local"), takes_hosts=False),
    "ssh": Backend(mpirun.command_over_ssh, takes_hosts=True),
    # mpirun with the site's own settings finds the hosts itself, unless the user names them.
    "mpi": Backend(partial(mpirun.command, where=""), takes_hosts=True),
    "slurm": Backend(slurm.command, takes_hosts=False, inside=slurm.inside),
    "sge": Backend(sge.command, takes_hosts=False, inside=sge.inside),
    "yarn": Backend(containers.yarn, takes_hosts=False),
    "k8s": Backend(containers.kubernetes, takes_hosts=False),
}


def default(hosts_given: bool) -> str:
    """Return the backend for a user who names no launcher."""
    if hosts_given:
        return "ssh"
    return next((name for name, backend in BACKENDS.items() if backend.inside()), "local")
