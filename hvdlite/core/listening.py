"""Keeps MPI from using what ranks do not need: open ports, files in /dev/shm, busy cores.

Open MPI's TCP component listens on all addresses, even if all ranks share memory on one host. On
one host, only a program that starts processes by MPI needs this component. Open MPI's shared-memory
component makes a file in /dev/shm, which a process without a launcher never removes. The user's own
settings, in variables or in Open MPI's files, take precedence.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Mapping

from hvdlite.core.launchers import OPEN_MPI, PMI, PMIX

_LOCAL_SIZE = OPEN_MPI.more[1]
_COMPONENTS = "OMPI_MCA_btl"
_SHARED_MEMORY = {"sm", "vader"}  # the components of Open MPI 5 and 4
_YIELD = "OMPI_MCA_mpi_yield_when_idle"
_CHOSEN = "OMPI_MCA_btl_tcp_if_include"  # also set by mpirun --mca btl_tcp_if_include
INTERFACES = "HVDLITE_NETWORK_INTERFACES"
_OF_SERVERS = "DMLC_INTERFACE"  # MXNet's variable, which names one interface


def networks(environ: Mapping[str, str]) -> list[str]:
    """Return the interfaces and networks that ranks may use; an empty list means all of them.

    >>> networks({"DMLC_INTERFACE": "eth1"}), networks({"HVDLITE_NETWORK_INTERFACES": "a, b"})
    (['eth1'], ['a', 'b'])
    """
    wanted = environ.get(INTERFACES) or environ.get(_OF_SERVERS) or ""
    return [word.strip() for word in wanted.split(",") if word.strip()]


def with_files(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment plus the settings in Open MPI's files; variables take precedence.

    >>> with_files({"OMPI_MCA_mca_base_param_files": "/no/such.conf"})
    {'OMPI_MCA_mca_base_param_files': '/no/such.conf'}
    """
    prefix = environ.get("OPAL_PREFIX") or sys.prefix
    usual = ["~/.openmpi/mca-params.conf", f"{prefix}/etc/openmpi-mca-params.conf"]
    usual.append("/etc/openmpi/openmpi-mca-params.conf")  # the file's path in distributions
    named = environ.get("OMPI_MCA_mca_base_param_files")
    found: dict[str, str] = {}
    for path in re.split("[:,]", named) if named else usual:
        with contextlib.suppress(OSError), open(os.path.expanduser(path), errors="replace") as file:
            for line in file:
                name, equals, value = line.partition("#")[0].partition("=")
                if equals:
                    found.setdefault(f"OMPI_MCA_{name.strip()}", value.strip())
    return {**found, **environ}


def confined(environ: Mapping[str, str], apart: bool = False, cores: int = 2) -> dict[str, str]:
    """Return the variables that a rank with this environment needs in addition.

    :param environ: the result of with_files().
    :param apart: True: the ranks of one host share no memory.
    :param cores: number of cores that this process may use. With more ranks than cores, a waiting
        rank must yield its core. Unasked, Open MPI yields only if mpirun knows of fewer slots than
        ranks. 9 ranks on 2 cores open a communicator in 15 ms with yielding, in 100 ms without.

    >>> alone = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    >>> confined({**alone, "OMPI_MCA_btl": "^ofi"})
    {'OMPI_MCA_btl': '^ofi,tcp'}
    >>> confined({**alone, "OMPI_MCA_btl": "^ofi"}, apart=True)
    {'OMPI_MCA_btl': '^ofi,sm'}
    >>> confined({})  # no launcher
    {'OMPI_MCA_btl': '^tcp,sm'}
    >>> confined({**alone, "OMPI_MCA_btl": "self,sm,tcp"})  # the user's own choice
    {}
    >>> confined({**alone, "OMPI_MCA_btl": "^sm"})  # without sm, ranks need tcp
    {}
    >>> confined({**alone, "OMPI_MCA_btl": "self"}, cores=1)
    {'OMPI_MCA_mpi_yield_when_idle': '1'}
    >>> confined({**alone, "OMPI_COMM_WORLD_SIZE": "4", "OMPI_MCA_btl_tcp_if_include": "eth0"})
    {'HVDLITE_NETWORK_INTERFACES': 'eth0'}
    """
    found = {}
    if environ.get(_CHOSEN) and INTERFACES not in environ:
        found[INTERFACES] = environ[_CHOSEN]
    if int(environ.get(_LOCAL_SIZE, 1)) > cores and _YIELD not in environ:
        found[_YIELD] = "1"
    components = environ.get(_COMPONENTS, "^")
    left_out = [name for name in components[1:].split(",") if name]
    needless = ("sm",) if apart else _needless(environ, _SHARED_MEMORY.isdisjoint(left_out))
    more = [name for name in needless if name not in left_out]
    if components.startswith("^") and more:
        found[_COMPONENTS] = f"^{','.join(left_out + more)}"
    return found


def has_fault_tolerance(environ: Mapping[str, str]) -> bool:
    """Return True if Open MPI lets a job go on after one of its processes has died."""
    return environ.get("OMPI_MCA_mpi_ft_enable", "").lower() in ("1", "true")


def _needless(environ: Mapping[str, str], shares_memory: bool) -> tuple[str, ...]:
    """Return the components of Open MPI that no rank needs to reach another rank."""
    if has_fault_tolerance(environ):
        return ()
    size = environ.get(OPEN_MPI.size)
    if size is None:
        launched = any(each.rank in environ for each in (PMIX, PMI))
        return () if launched else ("tcp", "sm")
    one_host = size == environ.get(_LOCAL_SIZE)
    return ("tcp",) if one_host and shares_memory else ()


def is_contained() -> bool:
    """Return True if the launcher started this rank in a container with its own PID namespace.

    If such containers share memory, Open MPI mistakes processes with equal ids for one process.
    """
    rank = os.environ.get(PMIX.rank)
    try:
        with open("/proc/1/environ", "rb") as file:
            first = file.read().split(b"\0")
    except OSError:
        return False
    return rank is not None and f"{PMIX.rank}={rank}".encode() in first
