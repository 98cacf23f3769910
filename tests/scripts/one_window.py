"""Rank 1 wants no window, the other rank of the host does."""

import os

import numpy as np
from jobs import report
from mpi4py import MPI

import hvdlite as hvd
import hvdlite.numpy as hnp

if MPI.COMM_WORLD.rank == 1:
    os.environ["HVDLITE_WINDOW"] = "0"
hvd.init()
assert hnp.allreduce(np.ones(3), op=hvd.Sum).sum() == 6
report(hvd.rank(), **hvd.stats())
