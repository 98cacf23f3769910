"""init() on a part of the ranks, on parts at once, and on several communicators in turn."""

import sys

from jobs import report
from mpi4py import MPI

import hvdlite as hvd
import hvdlite.numpy

world = MPI.COMM_WORLD
seen = {}


named = {"named": "sum", "unnamed": None}[sys.argv[1]]


def sum_of_world_ranks() -> int:
    """Ranks have called it more or less often before, in jobs that are over."""
    return int(hvd.numpy.allreduce([world.rank], op=hvd.Sum, name=named)[0])


if world.rank in (0, 2):  # a list: only those ranks call init
    hvd.init([2, 0])
    seen["list"] = [hvd.rank(), hvd.size(), sum_of_world_ranks()]
    hvd.shutdown()
else:
    try:
        hvd.init([2, 0])
    except ValueError as error:
        seen["left out"] = str(error)

odd = world.Split(world.rank % 2, -world.rank)  # two jobs at once, in reverse order
hvd.init(odd)
seen["split"] = [hvd.rank(), hvd.size(), sum_of_world_ranks()]
hvd.shutdown()
odd.Free()  # hvdlite works on duplicates, and has freed them

duplicate = world.Dup()
hvd.init(duplicate)
duplicate.Free()
seen["freed by its owner"] = [hvd.rank(), hvd.size(), sum_of_world_ranks()]
hvd.shutdown()

hvd.init()
seen["all"] = [hvd.rank(), hvd.size(), sum_of_world_ranks()]
seen["where"] = [hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()]
report(world.rank, **seen)
