"""Rank argv[1] is stopped after argv[2] s, for argv[3] s (0: forever); arrays have argv[4] values.

A rank that has reported a failure waits for the reports of others, which it finds as files in the
folder argv[5], because the launcher ends all ranks when one ends.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from jobs import report

import hvdlite as hvd

frozen, after, long, n = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
hvd.init()
rank, size, pid = hvd.rank(), hvd.size(), os.getpid()
for i in range(3):
    hvd.numpy.allreduce(np.ones(1000), name=f"warm{i}")
if rank == frozen:
    command = f"sleep {after}; kill -STOP {pid}"
    if long:
        command += f"; sleep {long}; kill -CONT {pid}"
    subprocess.Popen(["sh", "-c", command])
done, until, longest = 0, time.monotonic() + after + (long or 60) + 0.3, 0.0
x, start = np.full(n, rank + 1.0, np.float32), time.monotonic()
try:
    more = True
    while more:
        begin = time.monotonic()
        total = hvd.numpy.allreduce(x, op=hvd.Sum, name="x")
        assert total[0] == total[-1] == size * (size + 1) / 2
        ends = hvd.numpy.allreduce(np.array([begin > until], np.int32), op=hvd.Sum, name="end")
        more, done = not ends[0], done + 1
        longest = max(longest, time.monotonic() - begin)
except hvd.HvdliteError as error:
    seconds = time.monotonic() - begin
    blamed = error.rank if isinstance(error, hvd.RankFailedError) else None
    report(rank, text=str(error), seconds=seconds, blamed=blamed, done=done)
    sys.stdout.flush()
    (Path(sys.argv[5]) / str(rank)).touch()
    while len(os.listdir(sys.argv[5])) < size - 1:
        time.sleep(0.01)
    os._exit(3)
report(rank, done=done, longest=longest)
