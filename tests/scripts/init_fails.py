"""One rank has a setting that makes no sense: init() fails there, and nobody waits for ever."""

import os

from jobs import report
from mpi4py import MPI

import hvdlite as hvd

rank = MPI.COMM_WORLD.rank
if rank == 1:
    os.environ["HVDLITE_FUSION_THRESHOLD"] = "huge"
try:
    hvd.init()
except (ValueError, hvd.HvdliteError) as error:
    report(rank, text=str(error))
    raise
