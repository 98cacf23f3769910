"""Rank argv[1] is killed while the others wait for it, or compute ("later"): argv[2]."""

import os
import signal
import sys
import time

import numpy as np
from jobs import report
from mpi4py import MPI

import hvdlite as hvd

MPI.COMM_WORLD.Set_errhandler(MPI.ERRORS_RETURN)
hvd.init()
rank, dead = hvd.rank(), int(sys.argv[1])
pids = MPI.COMM_WORLD.allgather(os.getpid())
for i in range(10):
    hvd.numpy.allreduce(np.ones(1000), name=f"warm{i % 2}")
if rank == dead:
    time.sleep(0.2)  # the others wait
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[2] == "later":
    while os.path.exists(f"/proc/{pids[dead]}"):
        time.sleep(0.01)
texts = []
for _ in range(2):
    try:
        hvd.numpy.allreduce(np.ones(1000), name="lost")
    except hvd.RankFailedError as error:
        assert (error.rank, error.pid) == (dead, pids[dead])
        assert error.host
        texts.append(str(error))
hvd.shutdown()
report(rank, texts=texts)
os._exit(0)  # MPI_Finalize waits for the dead rank
