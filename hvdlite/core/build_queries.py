"""Horovod's functions that say how the library was built; hvdlite.torch replaces some of them."""

from typing import Callable

from hvdlite.core import start, topology
from hvdlite.core.native import HvdliteError


def mpi_threads_supported() -> bool:
    """Return True if MPI allows calls from several threads at the same time.

    :raises ValueError: before ``init()`` and after ``shutdown()``.
    """
    topology.size()
    try:
        topology.world().check_groups()
    except HvdliteError:
        return False
    return True


def _answer(name: str, value: int, text: str) -> Callable[[], int]:
    def answer() -> int:
        return value

    answer.__name__ = answer.__qualname__ = name
    answer.__doc__ = text
    return answer


mpi_built = _answer("mpi_built", True, "Return True: hvdlite is compiled for MPI.")


def mpi_enabled() -> bool:
    """Return True if this process's job runs over MPI, or, before init(), would run over MPI."""
    return start.without_mpi() is None


gloo_built = _answer("gloo_built", False, "Return False.")
gloo_enabled = _answer("gloo_enabled", False, "Return False.")
nccl_built = _answer("nccl_built", 0, "Return 0; Horovod returns NCCL's version.")
ddl_built = _answer("ddl_built", False, "Return False.")
ccl_built = _answer("ccl_built", False, "Return False.")
cuda_built = _answer("cuda_built", False, "Return False: hvdlite itself moves arrays of CPUs.")
rocm_built = _answer("rocm_built", False, "Return False: hvdlite itself moves arrays of CPUs.")
