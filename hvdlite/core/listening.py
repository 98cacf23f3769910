"""Keeps a rank's sockets off networks that it does not need, before MPI opens them.

Open MPI's component for TCP listens on all addresses, also where all ranks share memory of one
host. Only ranks that MPI starts later need it there: those of elastic jobs.
"""

from typing import Dict, Mapping

_COMPONENTS = "OMPI_MCA_btl"
_CHOSEN = "OMPI_MCA_btl_tcp_if_include"  # also set by mpirun --mca btl_tcp_if_include
INTERFACES = "HVDLITE_NETWORK_INTERFACES"


def confined(environ: Mapping[str, str]) -> Dict[str, str]:
    """Return the variables that a rank with this environment needs in addition.

    >>> alone = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    >>> confined({**alone, "OMPI_MCA_btl": "^ofi"})
    {'OMPI_MCA_btl': '^ofi,tcp'}
    >>> confined({**alone, "OMPI_MCA_btl": "self,sm,tcp"})  # the user's own choice
    {}
    >>> confined({**alone, "OMPI_COMM_WORLD_SIZE": "4", "OMPI_MCA_btl_tcp_if_include": "eth0"})
    {'HVDLITE_NETWORK_INTERFACES': 'eth0'}
    """
    found = {}
    if environ.get(_CHOSEN) and INTERFACES not in environ:
        found[INTERFACES] = environ[_CHOSEN]
    given = environ.get(_COMPONENTS, "^")
    if _is_on_one_host(environ) and given.startswith("^") and "tcp" not in given[1:].split(","):
        found[_COMPONENTS] = f"{given},tcp" if given != "^" else "^tcp"
    return found


def _is_on_one_host(environ: Mapping[str, str]) -> bool:
    if environ.get("OMPI_MCA_mpi_ft_enable", "").lower() in ("1", "true"):
        return False
    size = environ.get("OMPI_COMM_WORLD_SIZE")
    if size is None:
        return not any(name in environ for name in ("PMIX_RANK", "PMI_RANK"))
    return size == environ.get("OMPI_COMM_WORLD_LOCAL_SIZE")
