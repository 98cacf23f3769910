"""How a job starts: by MPI, or by a launcher that only tells each process its rank and a place.

The latter are torchrun, by all five of its variables, Slurm's srun, and MXNet's launch.py, which
tells a worker where MXNet's scheduler is, and the scheduler its rank. They count where no launcher
of MPI has started the process; with HVDLITE_TRANSPORT=tcp they count there, too, and with mpi they
never do. Where they count, or where no launcher is known, neither mpi4py nor a libmpi is loaded.
The first init() decides: imports do not.

A rank's child inherits what a launcher has told the rank. So a rank notes it in MEMBER when it
joins its job, and nothing that is noted there counts in a child.
"""

import hashlib
import itertools
import json
import os
import re
import sys
from typing import Any, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from hvdlite.core import processes

TRANSPORT = "HVDLITE_TRANSPORT"  # tcp, mpi; not set: as above
PORT = "HVDLITE_PORT"
MEMBER = "HVDLITE_MEMBER"  # JSON: the process id of a rank; what its launcher told it
_OF_MPI = (
    *("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "HVDLITE_WATCHED"),
    *("ALPS_APP_PE", "JSM_NAMESPACE_RANK", "MPIRUN_RANK", "MV2_COMM_WORLD_RANK", "PALS_RANKID"),
)
_OF_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_RUN = "TORCHELASTIC_RUN_ID"  # torchrun itself has none
_OF_SERVERS = ("DMLC_NUM_WORKER", "DMLC_NUM_SERVER", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT")
_OF_SLURM = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST", "SLURM_JOB_ID")
# Of one launcher each: where any value differs from what MEMBER has, all are of another launcher.
_FAMILIES = (
    (*_OF_MPI, "PMIX_NAMESPACE", "PMI_SIZE", "PMI_FD"),
    (*_OF_TORCHRUN, _RUN, "TORCHELASTIC_RESTART_COUNT"),
    (*_OF_SLURM, "SLURM_STEP_ID"),
    (*_OF_SERVERS, "DMLC_ROLE"),
)
# What is told to a rank of the first of them beside that.
_MORE = (
    *(TRANSPORT, "HVDLITE_ELASTIC", "HVDLITE_ELASTIC_ADDRESS", "HVDLITE_NEWS"),
    "HVDLITE_REPLACEMENT",
)
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


_given: List[Place] = []  # the last one counts
SERVERS = "MXNet's launcher"
_decided: List[Optional[Place]] = []  # by the first init()
NEEDS_MPI = f"{{}} needs MPI: start the job by `hvdliterun` or mpirun, without {TRANSPORT}=tcp"
ALONE = Place("nobody", 0, 1, "127.0.0.1", (0,), "")


def own_environment(environ: Mapping[str, str] = os.environ) -> Mapping[str, str]:
    """Return the environment without what a launcher has told a rank above this process.

    >>> rank = {"PMI_RANK": "1", "PMI_SIZE": "2"}
    >>> child = {**rank, "LANG": "C", MEMBER: json.dumps([4711, rank])}
    >>> sorted(own_environment(child)), sorted(own_environment({**child, "PMI_RANK": "0"}))
    (['HVDLITE_MEMBER', 'LANG'], ['HVDLITE_MEMBER', 'LANG', 'PMI_RANK', 'PMI_SIZE'])
    """
    above = rank_above(environ)
    told = above.told if above else {}
    used = [f for f in _FAMILIES if above and all(environ.get(n) == told.get(n) for n in f)]
    if environ is os.environ and _torchrun_is_nearer():
        used.append(_FAMILIES[0])
    names = {*itertools.chain(*used), *(_MORE if _FAMILIES[0] in used else ())}
    return {name: value for name, value in environ.items() if name not in names}


def _torchrun_is_nearer() -> bool:
    """Tell whether torchrun has started this process below a process that MPI's launcher started.

    Then MPI's ranks are those above: MPI would wait for a second such rank.
    """
    names = [name for name in _OF_MPI if name in os.environ]
    if not names or not all(name in os.environ for name in (*_OF_TORCHRUN, _RUN)):
        return False
    try:
        launcher = processes.parent(processes.with_own(_RUN)[-1])
    except OSError:  # no /proc
        return False
    return processes.has_own(launcher, names[0])


class Above(NamedTuple):
    """A rank, one of the processes that have started this one."""

    pid: int
    told: Mapping[str, str]  # by its launcher


def rank_above(environ: Mapping[str, str] = os.environ) -> Optional[Above]:
    """Return the rank that this process is a child of; None: it is none's."""
    if MEMBER not in environ:
        return None
    above = Above(*json.loads(environ[MEMBER]))
    return None if above.pid == os.getpid() else above


def note_member() -> None:
    """Let children know that this process has joined the job of which its launcher told it.

    From now on the environment has no more what was told to a rank above.
    """
    own = own_environment()
    for name in set(os.environ) - set(own):
        del os.environ[name]
    told = {name: own[name] for family in _FAMILIES for name in family if name in own}
    os.environ[MEMBER] = json.dumps([os.getpid(), told])


def place(environ: Optional[Mapping[str, str]] = None) -> Optional[Place]:
    """Return where the ranks of this process's job meet without MPI; None: MPI has the job.

    :param environ: None: this process's own.

    :raises ValueError: a variable is wrong.

    >>> at = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "n7"}
    >>> place({**at, "MASTER_PORT": "29500"}).ports[:2]
    (29501, 29502)
    >>> place(at) == ALONE  # not by torchrun
    True
    """
    environ = own_environment() if environ is None else environ
    if is_by_mpi(environ):
        return None
    if _given:
        return _given[-1]
    if environ.get(TRANSPORT):
        environ = _in_torchruns_words(environ)
    if all(environ.get(name) for name in _OF_TORCHRUN):
        return _checked(_by_torchrun(environ), _OF_TORCHRUN, environ)
    if all(environ.get(name) for name in _OF_SLURM):
        return _checked(_by_slurm(environ), _OF_SLURM, environ)
    if is_of_servers(environ):
        return _by_servers(environ)
    return ALONE


def is_by_mpi(environ: Optional[Mapping[str, str]] = None) -> bool:
    """Tell whether a launcher of MPI has started the process, or the user wants MPI."""
    environ = own_environment() if environ is None else environ
    chosen = environ.get(TRANSPORT, "")
    if chosen not in ("", "mpi", "tcp"):
        raise ValueError(f"{TRANSPORT} is '{chosen}': expected tcp or mpi")
    return chosen == "mpi" or (not chosen and has_launcher_of_mpi(environ))


def has_launcher_of_mpi(environ: Optional[Mapping[str, str]] = None) -> bool:
    environ = own_environment() if environ is None else environ
    return any(name in environ for name in _OF_MPI)


def is_of_servers(environ: Optional[Mapping[str, str]] = None) -> bool:
    """Tell whether the process is a worker beside a scheduler and servers of MXNet's."""
    environ = own_environment() if environ is None else environ
    return environ.get("DMLC_ROLE") == "worker" and all(map(environ.get, _OF_SERVERS))


def give(found: Place) -> None:
    """Have the ranks meet there, as the program or MXNet's scheduler tells.

    A program tells before the first init().
    """
    _given.append(found)
    if _decided:
        _decided[0] = found


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


def decide(comm: Any = None) -> None:
    """Decide for this process how its job starts; a second call does nothing.

    :param comm: the argument of init(): a communicator, or ranks of MPI's; None: neither.
    """
    if not _decided:
        _decided.append(_found(comm))


def is_decided() -> bool:
    return bool(_decided)


def without_mpi() -> Optional[Place]:
    """Return this process's place, as decided, or as it would be now; None: MPI has the job."""
    return _decided[0] if _decided else _found()


def _found(comm: Any = None) -> Optional[Place]:
    if own_environment().get(TRANSPORT, "") == "tcp":
        return place()
    ranks = ranks_of_mpi()
    found = None if ranks > 1 else place()
    return None if found == ALONE and (ranks or comm is not None) else found


def ranks_of_mpi() -> int:
    """Return how many ranks MPI has, which mpi4py or the user has begun; 0: it does not run."""
    mpi = sys.modules.get("mpi4py.MPI")
    runs = mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized()
    return mpi.COMM_WORLD.size if runs else 0  # type: ignore[union-attr]
