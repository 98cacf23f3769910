"""Rank 1 has settings that make no sense, one after the other: init() fails, and nobody waits.

The arguments are NAME=VALUE; what the last of them raises ends the script.
"""

import os
import sys

from jobs import report
from mpi4py import MPI

import hvdlite as hvd

rank = MPI.COMM_WORLD.rank
for setting in sys.argv[1:]:
    name, _, value = setting.partition("=")
    if rank == 1:
        os.environ[name] = value
    try:
        hvd.init()
    except (ValueError, hvd.HvdliteError) as error:
        report(rank, **{name: str(error)})
        if setting == sys.argv[-1]:
            raise
    os.environ.pop(name, None)
