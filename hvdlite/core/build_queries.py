"""Horovod's questions about a build. hvdlite has one answer: MPI, on CPUs."""

from hvdlite.core import topology
from hvdlite.core.native import HvdliteError


def mpi_threads_supported() -> bool:
    """Tell whether MPI allows calls from several threads at once.

    :raises ValueError: before ``init()`` and after ``shutdown()``.
    """
    topology.size()
    try:
        topology.world().check_groups()
    except HvdliteError:
        return False
    return True


def mpi_built() -> bool:
    """Return True: hvdlite is compiled for MPI."""
    return True


def mpi_enabled() -> bool:
    """Return True: hvdlite runs on MPI."""
    return True


def gloo_built() -> bool:
    """Return False."""
    return False


def gloo_enabled() -> bool:
    """Return False."""
    return False


def nccl_built() -> int:
    """Return 0; Horovod: the version of NCCL that it is compiled for."""
    return 0


def ddl_built() -> bool:
    """Return False."""
    return False


def ccl_built() -> bool:
    """Return False."""
    return False


def cuda_built() -> bool:
    """Return False: arrays are on CPUs."""
    return False


def rocm_built() -> bool:
    """Return False: arrays are on CPUs."""
    return False
