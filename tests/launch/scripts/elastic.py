"""Elastic training of an array. argv: ranks that die, at which step; the job's size at its end.

It trains on until the job has that size; then ten steps more. A step adds what no rank alone knows,
so the sum tells whether a commit was lost.
"""

import os
import signal
import sys
import time

import numpy as np

import hvdlite as hvd

dead, when, wanted = sys.argv[1].split(","), int(sys.argv[2]), int(sys.argv[3])
if "REPLACEMENTS_HANG" in os.environ and "HVDLITE_REPLACEMENT" in os.environ:
    signal.pause()
hvd.init()
replacement = "HVDLITE_REPLACEMENT" in os.environ
first = "new" if replacement else str(hvd.rank())
died, resets = None, []


@hvd.elastic.run
def train(state):
    while state.more:
        if first in dead and state.step >= when:
            os.kill(os.getpid(), signal.SIGKILL)
        assert (hvd.numpy.allreduce(state.weights, name="equal") == state.weights).all()
        total = hvd.numpy.allreduce(np.ones(100), name="sum", op=hvd.Sum)
        state.weights = state.weights + total
        state.sizes.append(hvd.size())
        state.step += 1
        if hvd.size() == wanted and state.step > when:
            state.more -= 1
        time.sleep(0.005)
        state.commit()


state = hvd.elastic.ObjectState(weights=np.zeros(100), step=0, sizes=[], more=10)
state.register_reset_callbacks([lambda: resets.append(hvd.size())])
train(state)
assert (state.weights == sum(state.sizes)).all()
sizes = [str(size) for i, size in enumerate(state.sizes) if state.sizes[i - 1 : i] != [size]]
print(first, "saw", *sizes, "ends", hvd.rank(), "of", hvd.size(), "resets", *resets)
