"""Ranks that never end by themselves; the argument says what they do meanwhile."""

import sys
import time

import numpy as np

import hvdlite as hvd

hvd.init()
hvd.numpy.allreduce(np.ones(1))
sys.stdout.write("UP\n")
sys.stdout.flush()
while True:
    if sys.argv[1] == "train":
        hvd.numpy.allreduce(np.ones(1000), name="gradient")
    elif sys.argv[1] == "sleep":
        time.sleep(600)
