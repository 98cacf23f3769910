"""Rank 1 comes late to an allreduce, or, told so, waits for something else in the meantime."""

import threading
import time

import numpy as np
from jobs import report

import hvdlite as hvd
import hvdlite.numpy

hvd.init()
errors = {}


def wait_for(name: str) -> None:
    try:
        hvd.numpy.allreduce(np.ones(3), name=name)
    except hvd.HvdliteError as error:
        errors[name] = str(error)


other = threading.Thread(target=wait_for, args=("something else",))
if hvd.rank() == 1:
    other.start()
    time.sleep(2.5)  # late, on purpose
wait_for("gradient")
if hvd.rank() != 1:
    wait_for("something else")
else:
    other.join()
report(hvd.rank(), **errors)
