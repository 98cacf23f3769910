"""A job of a process and a process that it has spawned with MPI; each has its own COMM_WORLD."""

import sys

import numpy as np
from jobs import report
from mpi4py import MPI

import hvdlite as hvd

parent = MPI.Comm.Get_parent()
if parent == MPI.COMM_NULL:
    both = MPI.COMM_SELF.Spawn(sys.executable, [__file__], 1).Merge(False)
else:
    both = parent.Merge(True)
hvd.init(both)
total = hvd.numpy.allreduce(np.ones(1), op=hvd.Sum)
report(hvd.rank(), total=float(total[0]), size=hvd.size())
hvd.shutdown()
both.Free()
