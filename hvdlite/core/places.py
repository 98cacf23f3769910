"""Places: where the ranks of a job without MPI meet.

Most launchers set variables with the place. A program that starts its own ranks tells the ranks the
place by PyTorch's store. In a job of MXNet's launcher, MXNet's servers tell the place.
"""

import hashlib
import json
import os
import re
from datetime import timedelta
from typing import Any, Mapping, NamedTuple, Sequence, Tuple

from hvdlite.core import launchers
from hvdlite.core.launchers import JAX, MXNET, SRUN, TORCHRUN, Launcher

PORT = "HVDLITE_PORT"
PORTS = 8  # number of ports that rank 0 tries, because other programs may use some; chosen
# Range of ports for steps of Slurm, below the ports that the kernel assigns to other programs.
_FIRST_PORT, _PORTS = 15_000, 15_000
SERVERS = "MXNet's launcher"


class Place(NamedTuple):
    """What a launcher tells a process about its job."""

    launcher: str
    rank: int  # -1: MXNet's scheduler will give the rank and the fields below
    size: int
    host: str  # the host of rank 0
    ports: Tuple[int, ...]  # rank 0 listens on one of these
    job: str  # a name that no other job has


ALONE = Place("nobody", 0, 1, "127.0.0.1", (0,), "")


def place_in(environ: Mapping[str, str], with_mpi: bool) -> Place:
    """Return where the ranks meet, as a launcher has told this process; ALONE: no launcher has.

    :param environ: the variables that belong to this process.
    :param with_mpi: also use the rank and the size that a launcher of MPI has set.
    :raises ValueError: a variable has a wrong value.

    >>> at = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "n7"}
    >>> place_in({**at, "MASTER_PORT": "29500"}, with_mpi=False).ports[:2]
    (29501, 29502)
    >>> place_in(at, with_mpi=False) == ALONE  # torchrun also sets MASTER_PORT
    True
    """
    environ = _with_torchruns_names(environ) if with_mpi else environ
    for launcher in launchers.WITHOUT_MPI:
        if all(map(environ.get, launcher.variables)):
            return _check(_READ[launcher](environ), launcher, environ)
    return _by_servers(environ) if is_of_servers(environ) else ALONE


def is_of_servers(environ: Mapping[str, str]) -> bool:
    """Return True if the process is a worker in a job with MXNet's scheduler and servers."""
    return environ.get(MXNET.rank) == "worker" and all(map(environ.get, MXNET.variables))


def free_port() -> int:
    """Return a TCP port that is free now."""
    import socket  # here, because it is slow to import and seldom needed

    with socket.socket() as sock:
        sock.bind(("", 0))
        return sock.getsockname()[1]


def ports_from(first: int) -> Tuple[int, ...]:
    """Return the ports that rank 0 tries, starting with this one."""
    return tuple(range(first, min(first + PORTS, 1 << 16)))


def place_by_store(
    store: Any, launcher: str, rank: int, size: int, host: str, timeout: timedelta
) -> Place:
    """Return where the ranks meet: rank 0 chooses a port and a key. Collective.

    :param store: has the methods ``set``, ``get`` and ``wait`` of ``torch.distributed.Store``.
    :param launcher: the name of the program that started the ranks, for error texts.
    :param host: the address at which the other ranks reach this rank.
    """
    name = "hvdlite/place"
    if rank == 0:
        store.set(name, json.dumps([host, free_port(), os.urandom(16).hex()]))
    store.wait([name], timeout)
    where, port, key = json.loads(store.get(name))
    return Place(launcher, rank, size, where, ports_from(port), f"store {key}")


def _with_torchruns_names(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Add torchrun's variables for the rank that an MPI launcher has set, unless RANK is set."""
    for _, rank, size, *_ in (launchers.OPEN_MPI, launchers.PMI):
        if "RANK" not in environ and rank in environ and size in environ:
            own = {"RANK": environ[rank], "WORLD_SIZE": environ[size], "LOCAL_RANK": "0"}
            return {**environ, **own}
    return environ


def _by_torchrun(environ: Mapping[str, str]) -> Place:
    port = _number(environ, "MASTER_PORT")
    values = [environ.get(name, "") for name in TORCHRUN.run]
    rank, size = _number(environ, "RANK"), _number(environ, "WORLD_SIZE")
    job = f"torchrun {port} {' '.join(values)}"
    ports = _ports(environ, ports_from(port + 1), "MASTER_PORT")
    return Place("torchrun", rank, size, environ["MASTER_ADDR"], ports, job)


def _by_jax(environ: Mapping[str, str]) -> Place:
    """Read JAX's variables. Rank 0 avoids JAX's port, which JAX's own coordinator may use."""
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
            f"{of} is 65535, the highest port number, but rank 0 needs a port above {of}: lower "
            f"{of}, or set {PORT}"
        )
    return (_number(environ, PORT),) if environ.get(PORT) else tuple(ports)


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ[name]
    if not text.isdecimal() or int(text) >= 1 << 31 or ("PORT" in name and int(text) >= 1 << 16):
        what = "a port" if "PORT" in name else "a whole number"
        raise ValueError(f"{name} is '{text}': expected {what}")
    return int(text)


def _check(found: Place, launcher: Launcher, environ: Mapping[str, str]) -> Place:
    if not found.rank < found.size:
        named = ", ".join(f"{name}={environ[name]}" for name in launcher.variables[:2])
        raise ValueError(f"{found.launcher}: {named}: expected a rank below the number of ranks")
    return found
