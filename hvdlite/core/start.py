"""How a job starts: by MPI, or by a launcher that only tells each process its rank and a place.

The latter are torchrun, by all five of its variables, Slurm's srun, and MXNet's launch.py, which
tells a worker where MXNet's scheduler is, and the scheduler its rank. They count where no launcher
of MPI has started the process; with HVDLITE_TRANSPORT=tcp they count there, too, and with mpi they
never do. Where they count, neither mpi4py nor a libmpi is loaded.
"""

import functools
import hashlib
import importlib
import importlib.util
import os
import re
import sys
from typing import Any, Mapping, NamedTuple, Optional, Sequence, Tuple

TRANSPORT = "HVDLITE_TRANSPORT"  # tcp, mpi; not set: as above
PORT = "HVDLITE_PORT"
_OF_MPI = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "HVDLITE_WATCHED")
_OF_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_OF_SERVERS = ("DMLC_NUM_WORKER", "DMLC_NUM_SERVER", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT")
_OF_SLURM = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST", "SLURM_JOB_ID")
PORTS = 8  # which rank 0 tries, one after the other
# Of Slurm's steps: below those that systems give to anybody.
_FIRST_PORT, _PORTS = 15_000, 15_000


class Place(NamedTuple):
    """What a launcher tells a process of its job."""

    launcher: str
    rank: int  # -1: MXNet's scheduler tells it, and what follows
    size: int
    host: str  # of rank 0
    ports: Tuple[int, ...]  # one of them is rank 0's
    job: str  # tells this job from others


_given: Optional[Place] = None
SERVERS = "MXNet's launcher"
NEEDS_MPI = f"{{}} needs MPI: start the job by `hvdliterun` or mpirun, without {TRANSPORT}=tcp"
ALONE = Place("nobody", 0, 1, "127.0.0.1", (0,), "")


def place(environ: Mapping[str, str] = os.environ) -> Optional[Place]:
    """Return where the ranks of this process's job meet without MPI; None: MPI has the job.

    :raises ValueError: a variable is wrong.

    >>> at = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "n7"}
    >>> place({**at, "MASTER_PORT": "29500"}).ports[:2]
    (29501, 29502)
    >>> place(at)  # not by torchrun
    """
    if is_by_mpi(environ):
        return None
    if _given:
        return _given
    chosen = bool(environ.get(TRANSPORT))
    if chosen:
        environ = _in_torchruns_words(environ)
    if all(environ.get(name) for name in _OF_TORCHRUN):
        return _checked(_by_torchrun(environ), _OF_TORCHRUN, environ)
    if all(environ.get(name) for name in _OF_SLURM):
        return _checked(_by_slurm(environ), _OF_SLURM, environ)
    if is_of_servers(environ):
        return _by_servers(environ)
    return ALONE if chosen or importlib.util.find_spec("mpi4py") is None else None


def is_by_mpi(environ: Mapping[str, str] = os.environ) -> bool:
    """Tell whether a launcher of MPI has started the process, or the user wants MPI."""
    chosen = environ.get(TRANSPORT, "")
    if chosen not in ("", "mpi", "tcp"):
        raise ValueError(f"{TRANSPORT} is '{chosen}': expected tcp or mpi")
    return chosen == "mpi" or (not chosen and any(name in environ for name in _OF_MPI))


def is_of_servers(environ: Mapping[str, str] = os.environ) -> bool:
    """Tell whether the process is a worker beside a scheduler and servers of MXNet's."""
    return environ.get("DMLC_ROLE") == "worker" and all(map(environ.get, _OF_SERVERS))


def give(found: Place) -> None:
    """Have the ranks meet there, as the program or MXNet's scheduler tells.

    A program tells before the C library is loaded.
    """
    global _given
    _given = found
    without_mpi.cache_clear()


def free_port() -> int:
    """Return a port of TCP that nobody uses now."""
    import socket  # takes time, and few need it

    with socket.socket() as sock:
        sock.bind(("", 0))
        return sock.getsockname()[1]


def ports_from(first: int) -> Tuple[int, ...]:
    """Return the ports that rank 0 tries from this one on."""
    return tuple(range(first, min(first + PORTS, 1 << 16)))


def _in_torchruns_words(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return them with the rank that a launcher of MPI has given, if no other is there."""
    for rank, size in (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE")):
        if "RANK" not in environ and rank in environ and size in environ:
            own = {"RANK": environ[rank], "WORLD_SIZE": environ[size], "LOCAL_RANK": "0"}
            return {**environ, **own}
    return environ


def _by_torchrun(environ: Mapping[str, str]) -> Place:
    port = _number(environ, "MASTER_PORT")
    told = [environ.get(f"TORCHELASTIC_{name}", "") for name in ("RUN_ID", "RESTART_COUNT")]
    rank, size = _number(environ, "RANK"), _number(environ, "WORLD_SIZE")
    job = f"torchrun {port} {' '.join(told)}"
    ports = _ports(environ, ports_from(port + 1))
    return Place("torchrun", rank, size, environ["MASTER_ADDR"], ports, job)


def _by_slurm(environ: Mapping[str, str]) -> Place:
    job = f"slurm {environ['SLURM_JOB_ID']} {environ.get('SLURM_STEP_ID', '')}"
    digest = int.from_bytes(hashlib.sha256(job.encode()).digest()[:4], "big")
    ports = [_FIRST_PORT + (digest + i) % _PORTS for i in range(PORTS)]
    rank, size = _number(environ, "SLURM_PROCID"), _number(environ, "SLURM_STEP_NUM_TASKS")
    first = first_host(environ["SLURM_STEP_NODELIST"])
    return Place("srun", rank, size, first, _ports(environ, ports), job)


def _by_servers(environ: Mapping[str, str]) -> Place:
    port, size = _number(environ, "DMLC_PS_ROOT_PORT"), _number(environ, "DMLC_NUM_WORKER")
    return Place(SERVERS, -1, size, environ["DMLC_PS_ROOT_URI"], (port,), "")


def first_host(hosts: str) -> str:
    """Return the first host of a list as Slurm writes it.

    >>> first_host("gpu[007-009,12],login"), first_host("n1,n2"), first_host("rack[2-3]n[1-4]")
    ('gpu007', 'n1', 'rack2n1')
    """
    outside = re.match(r"(?:[^,\[]|\[[^\]]*\])*", hosts)
    return re.sub(r"\[(\d*)[^\]]*\]", r"\1", outside.group() if outside else "")


def _ports(environ: Mapping[str, str], ports: Sequence[int]) -> Tuple[int, ...]:
    if not ports and not environ.get(PORT):
        raise ValueError(f"MASTER_PORT has no port above it for rank 0: lower it, or set {PORT}")
    return (_number(environ, PORT),) if environ.get(PORT) else tuple(ports)


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ[name]
    if not text.isdecimal() or int(text) >= 1 << 31 or ("PORT" in name and int(text) >= 1 << 16):
        what = "a port" if "PORT" in name else "a whole number"
        raise ValueError(f"{name} is '{text}': expected {what}")
    return int(text)


def _checked(found: Place, names: Tuple[str, ...], environ: Mapping[str, str]) -> Place:
    if not found.rank < found.size:
        told = ", ".join(f"{name}={environ[name]}" for name in names[:2])
        raise ValueError(f"{found.launcher}: {told}: expected a rank below the number of ranks")
    return found


def is_worker() -> bool:
    """Tell whether multiprocessing has started this process, its server included."""
    process = sys.modules.get("multiprocessing.process")
    if process is None:
        return False
    begins = getattr(process.current_process(), "_inheriting", False)  # as the script is imported
    return begins or process.parent_process() is not None


@functools.lru_cache(maxsize=None)
def without_mpi() -> Optional[Place]:
    """Return this process's place, chosen at the first call; None: MPI has the job."""
    return None if mpi_has_ranks() and os.environ.get(TRANSPORT, "") != "tcp" else place()


def mpi_has_ranks() -> bool:
    """Tell whether MPI runs already, with several ranks."""
    mpi = sys.modules.get("mpi4py.MPI")
    runs = mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized()
    return runs and mpi.COMM_WORLD.size > 1  # type: ignore[union-attr]


def load() -> Tuple[Any, Any]:
    """Return the C library for jobs without MPI as cffi's ``(ffi, lib)``."""
    try:
        library = importlib.import_module("hvdlite._hvdlite_tcp")
    except ImportError as error:
        raise ImportError(
            f"hvdlite's C library for jobs without MPI cannot be loaded ({error}): run "
            "`make install`, or `pip install .`"
        ) from error
    return library.ffi, library.lib
