"""Keeps MPI from opening what a rank does not need: sockets on networks, files in /dev/shm.

Open MPI's component for TCP listens on all addresses, also where all ranks share memory of one
host. Only processes that a program itself starts by MPI need it there. Its component for shared
memory makes a file in /dev/shm, which a process without a launcher never removes.
"""

from __future__ import annotations

from collections.abc import Mapping

_COMPONENTS = "OMPI_MCA_btl"
_CHOSEN = "OMPI_MCA_btl_tcp_if_include"  # also set by mpirun --mca btl_tcp_if_include
INTERFACES = "HVDLITE_NETWORK_INTERFACES"


def confined(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a rank with this environment needs in addition.

    >>> alone = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    >>> confined({**alone, "OMPI_MCA_btl": "^ofi"})
    {'OMPI_MCA_btl': '^ofi,tcp'}
    >>> confined({})  # no launcher
    {'OMPI_MCA_btl': '^tcp,sm'}
    >>> confined({**alone, "OMPI_MCA_btl": "self,sm,tcp"})  # the user's own choice
    {}
    >>> confined({**alone, "OMPI_COMM_WORLD_SIZE": "4", "OMPI_MCA_btl_tcp_if_include": "eth0"})
    {'HVDLITE_NETWORK_INTERFACES': 'eth0'}
    """
    found = {}
    if environ.get(_CHOSEN) and INTERFACES not in environ:
        found[INTERFACES] = environ[_CHOSEN]
    given = environ.get(_COMPONENTS, "^")
    left_out = [name for name in given[1:].split(",") if name]
    more = [name for name in _needless(environ) if name not in left_out]
    if given.startswith("^") and more:
        found[_COMPONENTS] = f"^{','.join(left_out + more)}"
    return found


def _needless(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the components without which each rank still reaches every other one."""
    size = environ.get("OMPI_COMM_WORLD_SIZE")
    if size is None:
        launched = any(name in environ for name in ("PMIX_RANK", "PMI_RANK"))
        return () if launched else ("tcp", "sm")
    return ("tcp",) if size == environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") else ()
