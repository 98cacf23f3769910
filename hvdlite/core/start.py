"""How a job starts: by MPI, or by a launcher that only gives each process a rank and an address.

Launchers of the second kind are torchrun (all five of its variables must be set), a launcher that
sets JAX's three variables, Slurm's srun, and MXNet's launch.py. launch.py gives a worker only the
address of MXNet's scheduler, which then gives the worker its rank. hvdlite uses the variables of
these launchers if no MPI launcher started the process; with HVDLITE_TRANSPORT=tcp always, with
HVDLITE_TRANSPORT=mpi never. If hvdlite uses them, or if no launcher is known, neither mpi4py nor a
libmpi is loaded. The first init() decides this, not an import.

A child process of a rank inherits the launcher's variables. So a rank records its launcher's
variables in MEMBER when it joins its job, and a child ignores the variables recorded there.
"""

import hashlib
import itertools
import json
import os
import re
import sys
from typing import Any, Mapping, NamedTuple, Optional, Sequence, Tuple

from hvdlite.core import launchers, loaded_mpi
from hvdlite.core.launchers import JAX, MXNET, PMIX, SRUN, TORCHELASTIC, TORCHRUN, Launcher
from hvdlite.core.module_state import ModuleState
from hvdlite.machine import processes

TRANSPORT = "HVDLITE_TRANSPORT"  # tcp or mpi; if it is not set, the module decides as above
PORT = "HVDLITE_PORT"
MEMBER = "HVDLITE_MEMBER"  # JSON: the process id of a rank, and the variables of its launcher
_OF_MPI = (*(each.rank for each in launchers.OF_MPI), "HVDLITE_WATCHED")
# Variables, one tuple for each launcher. If one value differs from the value in MEMBER, a new
# launcher has set the whole tuple.
_FAMILIES = (
    (*_OF_MPI, *PMIX.run),
    *((*each.variables, *each.run) for each in (*launchers.WITHOUT_MPI, MXNET)),
)
# Variables that hvdliterun sets in addition to those of MPI.
_MORE = (
    *(TRANSPORT, "HVDLITE_ELASTIC", "HVDLITE_ELASTIC_ADDRESS", "HVDLITE_NEWS"),
    "HVDLITE_REPLACEMENT",
)
PORTS = 8  # number of ports that rank 0 tries, one after another
# Range of ports for steps of Slurm, below the ports that the kernel assigns to other programs.
_FIRST_PORT, _PORTS = 15_000, 15_000


class Place(NamedTuple):
    """What a launcher tells a process about its job."""

    launcher: str
    rank: int  # -1: MXNet's scheduler will give the rank and the fields below
    size: int
    host: str  # the host of rank 0
    ports: Tuple[int, ...]  # rank 0 listens on one of these
    job: str  # a name that no other job has


SERVERS = "MXNet's launcher"
NEEDS_MPI = f"{{}} needs MPI: start the job by `hvdliterun` or mpirun, without {TRANSPORT}=tcp"
ALONE = Place("nobody", 0, 1, "127.0.0.1", (0,), "")


class _Start(ModuleState):
    """How this process's job starts."""

    def begin(self) -> None:
        # the place that the program or MXNet's scheduler has given
        self.given: Optional[Place] = None
        self.is_decided = False  # the first init() sets it
        # where the ranks meet, once that is decided; None: the ranks meet over MPI
        self.place: Optional[Place] = None


_start = _Start()


def own_environment(environ: Mapping[str, str] = os.environ) -> Mapping[str, str]:
    """Return the environment without the variables that a launcher set for a parent process.

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
    told: Mapping[str, str]  # the variables that its launcher set


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
    told = {name: own[name] for family in _FAMILIES for name in family if name in own}
    os.environ[MEMBER] = json.dumps([os.getpid(), told])


def place(environ: Optional[Mapping[str, str]] = None) -> Optional[Place]:
    """Return where the ranks of this job meet without MPI; None: the job uses MPI.

    :param environ: the environment; None: this process's own environment.

    :raises ValueError: a variable has a wrong value.

    >>> at = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "n7"}
    >>> place({**at, "MASTER_PORT": "29500"}).ports[:2]
    (29501, 29502)
    >>> place(at) == ALONE  # not by torchrun
    True
    """
    environ = own_environment() if environ is None else environ
    if is_by_mpi(environ):
        return None
    if _start.given:
        return _start.given
    if environ.get(TRANSPORT):
        environ = _in_torchruns_words(environ)
    for launcher in launchers.WITHOUT_MPI:
        if all(map(environ.get, launcher.variables)):
            return _checked(_READ[launcher](environ), launcher, environ)
    if is_of_servers(environ):
        return _by_servers(environ)
    return ALONE


def is_by_mpi(environ: Optional[Mapping[str, str]] = None) -> bool:
    """Return True if the user chose MPI, or by default if an MPI launcher started this process."""
    environ = own_environment() if environ is None else environ
    chosen = environ.get(TRANSPORT, "")
    if chosen not in ("", "mpi", "tcp"):
        raise ValueError(f"{TRANSPORT} is '{chosen}': expected tcp or mpi")
    return chosen == "mpi" or (not chosen and has_launcher_of_mpi(environ))


def has_launcher_of_mpi(environ: Optional[Mapping[str, str]] = None) -> bool:
    environ = own_environment() if environ is None else environ
    return any(name in environ for name in _OF_MPI)


def is_of_servers(environ: Optional[Mapping[str, str]] = None) -> bool:
    """Return True if the process is a worker in a job with MXNet's scheduler and servers."""
    environ = own_environment() if environ is None else environ
    return environ.get(MXNET.rank) == "worker" and all(map(environ.get, MXNET.variables))


def set_place(found: Place) -> None:
    """Set the place where the ranks meet, as the program or MXNet's scheduler has chosen it.

    A program must call this before the first init().
    """
    _start.given = found
    if _start.is_decided:
        _start.place = found


def free_port() -> int:
    """Return a TCP port that is free now."""
    import socket  # here, because it is slow to import and seldom needed

    with socket.socket() as sock:
        sock.bind(("", 0))
        return sock.getsockname()[1]


def ports_from(first: int) -> Tuple[int, ...]:
    """Return the ports that rank 0 tries, starting with this one."""
    return tuple(range(first, min(first + PORTS, 1 << 16)))


def _in_torchruns_words(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Add torchrun's variables for the rank that an MPI launcher has set, unless RANK is set."""
    for _, rank, size, *_ in (launchers.OPEN_MPI, launchers.PMI):
        if "RANK" not in environ and rank in environ and size in environ:
            own = {"RANK": environ[rank], "WORLD_SIZE": environ[size], "LOCAL_RANK": "0"}
            return {**environ, **own}
    return environ


def _by_torchrun(environ: Mapping[str, str]) -> Place:
    port = _number(environ, "MASTER_PORT")
    told = [environ.get(name, "") for name in TORCHRUN.run]
    rank, size = _number(environ, "RANK"), _number(environ, "WORLD_SIZE")
    job = f"torchrun {port} {' '.join(told)}"
    ports = _ports(environ, ports_from(port + 1), "MASTER_PORT")
    return Place("torchrun", rank, size, environ["MASTER_ADDR"], ports, job)


def _by_jax(environ: Mapping[str, str]) -> Place:
    """Read JAX's variables. Rank 0 gets other ports, because JAX's service may use JAX's port."""
    address, name = environ[JAX.more[0]], f"the PORT of {JAX.more[0]}"
    host, _, port = address.rpartition(":")
    ports = _ports(environ, ports_from(_number({name: port}, name) + 1), name)
    rank, size = _number(environ, JAX.rank), _number(environ, JAX.size)
    return Place("JAX", rank, size, host.strip("[]"), ports, f"jax {address}")


def _by_slurm(environ: Mapping[str, str]) -> Place:
    (nodes, number), (step,) = SRUN.more, SRUN.run
    job = f"slurm {environ[number]} {environ.get(step, '')}"
    digest = int.from_bytes(hashlib.sha256(job.encode()).digest()[:4], "big")
    ports = [_FIRST_PORT + (digest + i) % _PORTS for i in range(PORTS)]
    rank, size = _number(environ, SRUN.rank), _number(environ, SRUN.size)
    return Place("srun", rank, size, first_host(environ[nodes]), _ports(environ, ports), job)


_READ = {TORCHRUN: _by_torchrun, JAX: _by_jax, SRUN: _by_slurm}


def _by_servers(environ: Mapping[str, str]) -> Place:
    port, size = _number(environ, "DMLC_PS_ROOT_PORT"), _number(environ, "DMLC_NUM_WORKER")
    return Place(SERVERS, -1, size, environ["DMLC_PS_ROOT_URI"], (port,), "")


def first_host(hosts: str) -> str:
    """Return the first host of a list in Slurm's notation.

    >>> first_host("gpu[007-009,12],login"), first_host("n1,n2"), first_host("rack[2-3]n[1-4]")
    ('gpu007', 'n1', 'rack2n1')
    """
    outside = re.match(r"(?:[^,\[]|\[[^\]]*\])*", hosts)
    return re.sub(r"\[(\d*)[^\]]*\]", r"\1", outside.group() if outside else "")


def _ports(environ: Mapping[str, str], ports: Sequence[int], of: str = "") -> Tuple[int, ...]:
    if not ports and not environ.get(PORT):
        raise ValueError(
            f"{of} is the highest port number, but rank 0 needs a higher one: lower it, or set "
            f"{PORT}"
        )
    return (_number(environ, PORT),) if environ.get(PORT) else tuple(ports)


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ[name]
    if not text.isdecimal() or int(text) >= 1 << 31 or ("PORT" in name and int(text) >= 1 << 16):
        what = "a port" if "PORT" in name else "a whole number"
        raise ValueError(f"{name} is '{text}': expected {what}")
    return int(text)


def _checked(found: Place, launcher: Launcher, environ: Mapping[str, str]) -> Place:
    if not found.rank < found.size:
        told = ", ".join(f"{name}={environ[name]}" for name in launcher.variables[:2])
        raise ValueError(f"{found.launcher}: {told}: expected a rank below the number of ranks")
    return found


def is_worker() -> bool:
    """Return True if multiprocessing started this process, as a worker or a server process."""
    process = sys.modules.get("multiprocessing.process")
    if process is None:
        return False
    # set while multiprocessing's worker imports the script
    begins = getattr(process.current_process(), "_inheriting", False)
    return begins or process.parent_process() is not None


def decide(comm: Any = None) -> None:
    """Decide how this process's job starts; a second call does nothing.

    :param comm: the argument of init(): a communicator, or a list of MPI's ranks, or None.
    """
    if not _start.is_decided:
        _start.place, _start.is_decided = _found(comm), True


def is_decided() -> bool:
    return _start.is_decided


def without_mpi() -> Optional[Place]:
    """Return the place that was decided, or would be decided now; None: the job uses MPI."""
    return _start.place if _start.is_decided else _found()


def _found(comm: Any = None) -> Optional[Place]:
    if own_environment().get(TRANSPORT, "") == "tcp":
        return place()
    ranks = loaded_mpi.ranks()
    found = None if ranks > 1 else place()
    return None if found == ALONE and (ranks or comm is not None) else found
