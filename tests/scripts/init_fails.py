"""One rank has a setting that makes no sense: init() fails there, and nobody waits for ever."""

import os
import sys

from jobs import report
from mpi4py import MPI

import hvdlite as hvd

rank = MPI.COMM_WORLD.rank
if rank == 1:
    os.environ[sys.argv[1]] = sys.argv[2]
try:
    hvd.init()
except (ValueError, hvd.HvdliteError) as error:
    report(rank, text=str(error))
    raise
