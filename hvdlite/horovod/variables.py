"""Where a rank is, in the variables that Horovod's launcher sets and programs read."""

import os
import socket

import hvdlite

# What mpirun sets before init() is known; Open MPI's names, then those of MPICH's hydra.
_OF_MPIRUN = {
    "HOROVOD_RANK": ("OMPI_COMM_WORLD_RANK", "PMI_RANK"),
    "HOROVOD_SIZE": ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"),
    "HOROVOD_LOCAL_RANK": ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"),
    "HOROVOD_LOCAL_SIZE": ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"),
}


def set_as_mpirun_says() -> None:
    """Set those that mpirun knows; ``init`` sets all."""
    os.environ["HOROVOD_HOSTNAME"] = socket.gethostname()
    for name, theirs in _OF_MPIRUN.items():
        values = [os.environ[their] for their in theirs if their in os.environ]
        if values:
            os.environ[name] = values[0]


def set_all() -> None:
    """Set them as the job is now: in an elastic one ranks change."""
    for what in ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size"):
        os.environ[f"HOROVOD_{what.upper()}"] = str(getattr(hvdlite, what)())
