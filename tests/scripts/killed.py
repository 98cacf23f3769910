"""Rank argv[1] is killed while the other ranks wait for it or, if argv[2] is "later", compute.

A child of the killed rank goes on running.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
from jobs import report

import hvdlite as hvd


def lives(pid: int) -> bool:
    """Return whether the process has not ended; a zombie has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_in(process_set) -> None:
    """Wait for the dead rank in a set of two ranks, and keep the error's text."""
    try:
        hvd.numpy.allreduce(np.ones(1000), name="pair", process_set=process_set)
    except hvd.RankFailedError as error:
        texts.append(str(error))


hvd.init()
rank, dead = hvd.rank(), int(sys.argv[1])
texts: list = []
pair = hvd.add_process_set(sorted([1, dead]))
pids = hvd.allgather_object(os.getpid())
for i in range(10):
    hvd.numpy.allreduce(np.ones(1000), name=f"warm{i % 2}")
waits = threading.Thread(target=wait_in, args=[pair])
if rank == 1:
    waits.start()
if rank == dead:
    subprocess.Popen(["sleep", "10"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(0.2)  # until the other ranks wait for this rank
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[2] == "later":
    while lives(pids[dead]):
        time.sleep(0.01)
for _ in range(2):
    try:
        hvd.numpy.allreduce(np.ones(1000), name="lost")
    except hvd.RankFailedError as error:
        assert (error.rank, error.pid) == (dead, pids[dead])
        assert error.host
        texts.append(str(error))
if rank == 1:
    waits.join()
hvd.shutdown()
report(rank, texts=texts)
