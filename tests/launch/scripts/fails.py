"""Rank 1 ends as argv[1] says, while the other ranks wait for rank 1 or compute."""

import os
import signal
import sys
import time

import hvdlite as hvd

hvd.init()
how = sys.argv[1]
print(f"rank {hvd.rank()} is process {os.getpid()}")
hvd.allgather_object(0)
if hvd.rank() == 1:
    for i in range(30):
        print("line", i)
    if how == "exit":
        os._exit(7)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise ValueError("no such thing")
if how == "compute":
    time.sleep(600)
while True:
    hvd.allgather_object(0)
