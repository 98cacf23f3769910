"""Elastic training of an array. argv: ranks to kill ("1,2" or "-"), step of death, number of steps.

A rank to kill may be "new": a replacement. The number of steps may be "10 at 3": 10 more steps
after the step of death as soon as the job has 3 ranks.

Steps do not commute, and the state keeps which ranks took part in each step, so the loop at the end
computes the expected bits in one process. With "-" in argv, the test itself kills ranks (the folder
PIDS has a file for each process id), or child processes do: DIES_AFTER lists the seconds of each
rank, or "-" for a rank that lives.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from jobs import report

import hvdlite as hvd

dead = [] if sys.argv[1] == "-" else sys.argv[1].split(",")
when, (steps, *wanted) = int(sys.argv[2]), map(int, sys.argv[3].split(" at "))
if "REPLACEMENTS_HANG" in os.environ and "HVDLITE_REPLACEMENT" in os.environ:
    signal.pause()


def die_after(seconds: str) -> subprocess.Popen:
    line = f"sleep {seconds}; date +'KILLED %s.%N'; kill -9 {os.getpid()}"
    return subprocess.Popen(
        ["sh", "-c", line if seconds != "-" else "true"], start_new_session=True
    )


hvd.init()
replacement, after = "HVDLITE_REPLACEMENT" in os.environ, os.environ.get("DIES_AFTER")
first = os.getpid() if replacement else hvd.rank()
name = "new" if replacement else str(first)
pair = hvd.global_process_set
if not (wanted or after) and hvd.size() > 2:
    pair = hvd.add_process_set([0, hvd.size() - 1])
committed, resets = 0, []
if "PIDS" in os.environ:
    (Path(os.environ["PIDS"]) / str(os.getpid())).touch()
death = die_after(after.split(",")[first] if after and not replacement else "-")


def gradient_of(rank: int, step: int) -> np.ndarray:
    return np.random.RandomState([rank, step]).randint(-1000, 1000, 1000).astype("f8")


def update(weights: np.ndarray, mean: np.ndarray) -> np.ndarray:
    return np.tanh(weights * 1.25 + mean / 1024)


def sum_of_pair() -> None:
    if pair.process_set_id is not None and pair.included():
        ones = hvd.numpy.allreduce(np.ones(3), name="p", op=hvd.Sum, process_set=pair)
        assert ones[0] == pair.size()


@hvd.elastic.run
def train(state):
    global committed
    assert state.step >= committed, f"step {state.step} after the commit of step {committed}"
    began = state.step
    while state.end is None or state.step < state.end:
        if name in dead and state.step >= when:
            if "EXITS" in os.environ:
                sys.exit(0)
            os.kill(os.getpid(), signal.SIGKILL)
        # When a rank dies, the last rank waits for rank 0 in sum_of_pair(), and rank 0 for all.
        early = dead and state.step == when and not resets and first == hvd.size() - 1
        if early:
            sum_of_pair()
        members = hvd.numpy.allgather(np.array([first]), name="members")
        mean = hvd.numpy.allreduce(gradient_of(first, state.step), name="grad", op=hvd.Sum)
        if not early:
            sum_of_pair()
        state.weights = update(state.weights, mean / hvd.size())
        state.members.append(members.tolist())
        state.step += 1
        if wanted:
            time.sleep(0.005)  # the ranks go on with slow steps until the job has the wanted size
            if state.end is None and [hvd.size()] == wanted and state.step > when:
                state.end = state.step + steps
        state.commit()
        committed = state.step
        if resets and state.step == began + 1:
            print(f"WENT ON {time.time()} {hvd.size()}", flush=True)


end = None if wanted else steps
state = hvd.elastic.ObjectState(weights=np.ones(1000), step=0, members=[], end=end)
state.register_reset_callbacks([lambda: resets.append(hvd.size())])
train(state)
death.kill()
expected = np.ones(1000)
for step, members in enumerate(state.members):
    total = sum(gradient_of(rank, step) for rank in members)
    expected = update(expected, total / len(members))
assert len(state.members) == state.end
assert (state.weights == expected).all()
sizes = [len(members) for members in state.members]
ends = {"place": hvd.rank(), "size": hvd.size(), "pair": pair.ranks}
report(first, name=name, sizes=sizes, resets=resets, **ends)
