"""Rank 1's exit function fails; the first argument says when it was registered."""

import atexit
import sys

when = sys.argv[1]


def save() -> None:
    from mpi4py import MPI

    if MPI.COMM_WORLD.rank == 1:
        raise RuntimeError("the model was not saved")


if when == "before hvdlite":  # it then runs after hvdlite's own, when the job has been left
    atexit.register(save)

import numpy as np  # noqa: E402

import hvdlite as hvd  # noqa: E402

hvd.init()
hvd.numpy.allreduce(np.ones(3))
if when == "after hvdlite":
    atexit.register(save)
