"""Asks the MPI that the program has loaded, if any; this module never loads an MPI."""

import sys
from typing import Any


def ranks() -> int:
    """Return how many ranks MPI has; 0: neither mpi4py nor the user has initialized MPI."""
    return _loaded().COMM_WORLD.size if runs() else 0


def runs() -> bool:
    """Return True if MPI is initialized and not finalized."""
    mpi = _loaded()
    return mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized()


def is_communicator(value: Any) -> bool:
    """Return True for a communicator of mpi4py."""
    mpi = _loaded()
    return mpi is not None and isinstance(value, mpi.Comm)


def _loaded() -> Any:
    """Return mpi4py's MPI if the program has imported it, else None."""
    mpi = sys.modules.get("mpi4py.MPI")
    # the import of mpi4py may still be in progress
    return mpi if hasattr(mpi, "Is_initialized") else None
