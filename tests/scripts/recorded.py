"""After 12 equal steps rank 1 stalls, stalls once per tensor name, or dies, as argv[1] says."""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
from jobs import report

import hvdlite as hvd
from hvdlite.monitor import report as of_failures

# a busy machine may keep a rank from writing its stacks or a report
of_failures._STACKS_SECONDS = of_failures.PATIENCE = 60.0
what, folder = sys.argv[1:]
heard = []
signal.signal(signal.SIGURG, lambda *_: heard.append(1))
hvd.init()
for i in range(12):
    hvd.numpy.allreduce(np.ones(1000, np.float32), name=f"gradient{i % 4}")


def where_it_stands():
    if what == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    while not any("in where_it" in text.read_text() for text in Path(folder).iterdir()):
        time.sleep(0.01)


if what == "shrinks":
    for name in ("a" * 200, "波" * 60, "c"):
        while hvd.rank() == 1 and not any(
            f"allreduce.{name}' has waited" in text.read_text()
            for text in Path(folder).glob("*-stall-*.txt")
        ):
            time.sleep(0.01)
        hvd.numpy.allreduce(np.ones(1), name=name)
elif hvd.rank() == 1:
    where_it_stands()
try:
    hvd.numpy.allreduce(np.ones(1000, np.float32), name="late")
except hvd.RankFailedError as error:
    assert what == "dies"
    assert error.rank == 1
report(hvd.rank(), heard=len(heard))
hvd.shutdown()
