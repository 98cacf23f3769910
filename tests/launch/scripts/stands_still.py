"""Rank 2 does not come to an allreduce that the others wait for."""

import time

import numpy as np

import hvdlite as hvd

hvd.init()
hvd.numpy.allreduce(np.ones(1), name="first")
if hvd.rank() == 2:
    print("computes on")
    time.sleep(60)
hvd.numpy.allreduce(np.ones(1), name="second")
