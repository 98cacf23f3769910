"""Which variables a launcher has set for this process itself, and which for a parent process.

A child process of a rank inherits the launcher's variables. So a rank records its launcher's
variables in MEMBER when it joins its job, and a child ignores the variables recorded there.
"""

import itertools
import json
import os
import sys
from typing import Mapping, NamedTuple, Optional

from hvdlite.core import launchers
from hvdlite.core.launchers import MXNET, PMIX, TORCHELASTIC, TORCHRUN
from hvdlite.machine import processes

MEMBER = "HVDLITE_MEMBER"  # JSON: the process id of a rank, and the variables of its launcher
TRANSPORT = "HVDLITE_TRANSPORT"  # a name of TRANSPORTS; if it is not set, start.py decides
# Name -> the bootstrap and the membership of a job over this transport. They are named, not
# imported, because an import of the modules for MPI initializes MPI.
_OF_MPI_JOBS = "hvdlite.bootstrap.mpi.bootstrap"
TRANSPORTS = {
    "tcp": (
        "hvdlite.bootstrap.socket_bootstrap:SocketBootstrap",
        "hvdlite.membership.elastic:ElasticMembership",
    ),
    "mpi": (f"{_OF_MPI_JOBS}:MPIBootstrap", f"{_OF_MPI_JOBS}:MPIMembership"),
}
_OF_MPI = (*(each.rank for each in launchers.OF_MPI), "HVDLITE_WATCHED")
# One tuple for each launcher: the variables that it sets. MEMBER has the values of the rank above
# this process: if one value of a tuple differs, a new launcher has set the whole tuple.
_FAMILIES = (
    (*_OF_MPI, *PMIX.run),
    *((*each.variables, *each.run) for each in (*launchers.WITHOUT_MPI, MXNET)),
)
# Variables that hvdliterun sets in addition to those of MPI.
_MORE = (
    *(TRANSPORT, "HVDLITE_ELASTIC", "HVDLITE_ELASTIC_ADDRESS", "HVDLITE_NEWS"),
    "HVDLITE_REPLACEMENT",
)


def own_environment(environ: Mapping[str, str] = os.environ) -> Mapping[str, str]:
    """Return the environment without the variables that a launcher set for a parent process.

    >>> rank = {"PMI_RANK": "1", "PMI_SIZE": "2"}
    >>> child = {**rank, "LANG": "C", MEMBER: json.dumps([4711, rank])}
    >>> sorted(own_environment(child)), sorted(own_environment({**child, "PMI_RANK": "0"}))
    (['HVDLITE_MEMBER', 'LANG'], ['HVDLITE_MEMBER', 'LANG', 'PMI_RANK', 'PMI_SIZE'])
    """
    above = rank_above(environ)
    variables = above.variables if above else {}
    used = [f for f in _FAMILIES if above and all(environ.get(n) == variables.get(n) for n in f)]
    if environ is os.environ and _torchrun_is_nearer():
        used.append(_FAMILIES[0])
    names = {*itertools.chain(*used), *(_MORE if _FAMILIES[0] in used else ())}
    return {name: value for name, value in environ.items() if name not in names}


def _torchrun_is_nearer() -> bool:
    """Return True if torchrun started this process and an MPI launcher started torchrun.

    Then torchrun is the rank that MPI knows. If this process took the same rank, MPI would wait
    forever.
    """
    names = [name for name in _OF_MPI if name in os.environ]
    if not names or not all(name in os.environ for name in (*TORCHRUN.variables, TORCHELASTIC)):
        return False
    try:
        launcher = processes.parent(processes.with_own(TORCHELASTIC)[-1])
    except OSError:  # no /proc
        return False
    return processes.has_own(launcher, names[0])


class Above(NamedTuple):
    """A rank that is an ancestor of this process."""

    pid: int
    variables: Mapping[str, str]  # environment variables from the rank's launcher


def rank_above(environ: Mapping[str, str] = os.environ) -> Optional[Above]:
    """Return the rank that is an ancestor of this process, or None."""
    if MEMBER not in environ:
        return None
    above = Above(*json.loads(environ[MEMBER]))
    return None if above.pid == os.getpid() else above


def note_member() -> None:
    """Record in MEMBER, for child processes, that this process is a rank of its launcher's job.

    Also remove from the environment the variables that a launcher set for an ancestor.
    """
    own = own_environment()
    for name in set(os.environ) - set(own):
        del os.environ[name]
    variables = {name: own[name] for family in _FAMILIES for name in family if name in own}
    os.environ[MEMBER] = json.dumps([os.getpid(), variables])


def has_launcher_of_mpi(environ: Optional[Mapping[str, str]] = None) -> bool:
    environ = own_environment() if environ is None else environ
    return any(name in environ for name in _OF_MPI)


def is_worker() -> bool:
    """Return True if multiprocessing started this process, as a worker or a server process."""
    process = sys.modules.get("multiprocessing.process")
    if process is None:
        return False
    # multiprocessing sets _inheriting while its worker imports the script
    begins = getattr(process.current_process(), "_inheriting", False)
    return begins or process.parent_process() is not None
