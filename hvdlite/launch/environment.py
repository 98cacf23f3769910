"""The environment of a rank."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence

from hvdlite.core import agent_protocol, limits, listening, member
from hvdlite.launch import sizing
from hvdlite.machine import files

TYPE_CHECKING = False
if TYPE_CHECKING:  # only for annotations, because agents must start fast
    from hvdlite.launch.job import Job

# hvdliterun forwards no variables of one host's login, or of one backend process, to ranks.
_OWN = {
    *("HOME", "HOST", "HOSTNAME", "LOGNAME", "MAIL", "OLDPWD", "PWD", "SHELL", "SHLVL", "TMPDIR"),
    *("USER", "_", "DISPLAY", "XAUTHORITY", "COLUMNS", "LINES"),
}
_OWN_PREFIXES = (
    *("BASH_FUNC", "DBUS_", "SSH_", "XDG_", "LS_"),
    *("SLURM_", "SBATCH_", "SALLOC_", "SGE_"),
)
RANK = "HVDLITE_AGENT_RANK"  # starter.py sets it for each agent
_OF_A_RANK = (
    *("PMI_", "PMIX_", "PMI2_", "HYDI_", "HYDRA_", "OMPI_", "PRTE_"),
    *(agent_protocol.LAUNCHER, RANK, member.MEMBER),
)
_NOT_OF_A_RANK = (
    *("OMPI_MCA_", "PRTE_MCA_", "PMIX_MCA_"),
    *("HYDRA_LAUNCHER_", "OMPI_ALLOW_", "PRTE_ALLOW_"),
)


def of_a_rank(name: str) -> bool:
    """Tell whether a backend sets this variable for each process that it starts."""
    return name.startswith(_OF_A_RANK) and not name.startswith(_NOT_OF_A_RANK)


def for_backend(extra: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a backend's command.

    hvdliterun may itself run in a rank, so variables of a rank are left out. Without HOME, which a
    service or container may lack, Open MPI does not start.
    """
    kept = {name: value for name, value in os.environ.items() if not of_a_rank(name)}
    return {"HOME": os.path.expanduser("~"), **kept, **extra}


def forwarded(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the part of the user's environment that every rank gets."""
    return {
        name: value
        for name, value in environ.items()
        if name not in _OWN and not name.startswith(_OWN_PREFIXES) and not of_a_rank(name)
    }


def added(job: Job) -> dict[str, str]:
    """Return the variables that the options add for every rank."""
    defaults = {
        # Python then writes each line when it is printed, so a crash loses no line
        "PYTHONUNBUFFERED": "1",
        # A failed rank waits this long for the other ranks to learn of the failure. So the job ends
        # within 5 seconds.
        limits.EXIT: "2",
        agent_protocol.FOLD: "0" if job.output_dir else "1",  # 1: shorten tracebacks
    }
    unset = {name: value for name, value in defaults.items() if name not in os.environ}
    mode = {"HVDLITE_KVSTORE_MODE": job.mode}  # tells ranks what kvstore `dist_sync` means
    elastic = {
        agent_protocol.ELASTIC: "1",
        agent_protocol.FEWEST: str(job.fewest),
        agent_protocol.MOST: str(job.most),
    }
    mode.update(elastic if job.elastic else {})
    without_mpi = job.transport == "tcp" or job.mode == "ps"
    mode.update({"HVDLITE_SECRET": job.secret} if without_mpi else {})
    interfaces = {listening.INTERFACES: ",".join(job.interfaces)} if job.interfaces else {}
    if job.mode == "ps" and job.interfaces:
        interfaces["DMLC_INTERFACE"] = job.interfaces[0]
    return {**unset, **mode, **interfaces, **job.env}


def exit_timeout(job: Job) -> float:
    """Return the seconds for which a failed rank of the job waits for the other ranks."""
    try:
        return limits.limit_of(limits.EXIT, {**os.environ, **added(job)})
    except ValueError:  # the ranks refuse the value
        return limits.DEFAULTS[limits.EXIT]


def for_jax(environ: Mapping[str, str]) -> dict[str, str]:
    """Return variables that jaxlib reads at its import, which may come before hvdlite's import."""
    if "MPITRAMPOLINE_LIB" in environ or importlib.util.find_spec("jaxlib") is None:
        return {}
    library = files.shipped("_hvdlite_jax")
    return {"MPITRAMPOLINE_LIB": library} if library else {}


def with_job_site(environ: Mapping[str, str]) -> dict[str, str]:
    """Return variables that confine MPI's sockets, and make Python load job_site/sitecustomize."""
    folder = os.path.join(os.path.dirname(__file__), "job_site")
    others = environ.get("PYTHONPATH", "").split(os.pathsep)
    path = os.pathsep.join([folder, *(p for p in others if p and p != folder)])
    return {**listening.confined(environ), "PYTHONPATH": path}


def threads(
    environ: Mapping[str, str], local_size: int, own: Sequence[object] | None = None
) -> dict[str, str]:
    """Return OMP_NUM_THREADS for the rank's share of cores: MXNet's default is a thread per core.

    :param own: the cores to which the rank is bound, if any.
    """
    if "OMP_NUM_THREADS" in environ:
        return {}
    share = min(len(os.sched_getaffinity(0)), sizing.quota()) // local_size
    return {"OMP_NUM_THREADS": str(max(1, min(share, len(own)) if own else share))}


def parse_assignments(texts: list[str], option: str) -> dict[str, str]:
    """Parse NAME=VALUE, MXNet's NAME:VALUE, or NAME, which copies the user's value.

    >>> parse_assignments(["A=1:2", "B:x=y"], "--env-worker")
    {'A': '1:2', 'B': 'x=y'}
    """
    found = {}
    for text in texts:
        cut = min((i for i in (text.find("="), text.find(":")) if i > 0), default=None)
        if cut is not None:
            found[text[:cut]] = text[cut + 1 :]
        elif text in os.environ:
            found[text] = os.environ[text]
        elif not text or not text.isidentifier():
            raise ValueError(f"{option} '{text}': expected NAME=VALUE or NAME")
    return found
