"""Compares the simulation with emulated hosts that make the same calls; takes some minutes.

    python -m benchmarks.sim.validate

tests/cluster.py emulates the hosts by network namespaces (as root); the ranks use sockets. The
effective rate of the links is fitted to two hosts. All other simulated times follow from that rate
and COSTS. The program fails if an error is above 10 %, or the median error above 5 %.
"""

import argparse
import os
import statistics
import sys
import time
from contextlib import suppress
from typing import Any, Dict, List, NamedTuple, Tuple

from benchmarks import harness, sim
from benchmarks.harness import PAYLOAD, ROOT, markdown

sys.path.insert(0, str(ROOT / "tests"))

SIZES = [64_000, 1_000_000, 10_000_000]
SECONDS, LEAST, MOST = 2.0, 3, 20  # for each size: seconds of all calls, fewest calls, most calls
ROUNDS = 2  # the faster round counts: other programs disturb it less, and the simulation not at all
BURST = "8kb"  # a larger burst would send small arrays faster than the rate
# Ranks must not spin, because all hosts share the machine's cores.
WAITING = {"HVDLITE_SPIN_MICROSECONDS": "0", "HVDLITE_YIELD_MICROSECONDS": "0"}
# Costs (not fitted) for a machine whose two cores all hosts share. The cost of a message comes from
# a call of 64 bytes, which takes 0.06 to 0.11 ms. Between these two costs, the simulated time of
# 64 KB on 4 hosts with 2 ranks each differs by 10 %.
COSTS = sim.Costs(10e-6, 8e-6, 1e-9, 1e-9, 60e-6, burst=8192 * PAYLOAD, wake=20e-6)
WORST, MEDIAN, REPLAY = 0.10, 0.05, 0.05
# Simulated times are means over the links' rates r (1 - SHARP), r and r (1 + SHARP), because a
# small change of the rate can change a time much: 64 KB on 4 hosts with 2 ranks each take 4.4 ms at
# 0.9605 of the links' rate, and 4.8 ms at 0.961 of the rate.
SHARP = 0.003


class Layout(NamedTuple):
    hosts: int
    ranks: int
    mbit: int

    def __str__(self) -> str:
        return f"{self.hosts}x{self.ranks}, {self.mbit} Mbit/s"


FITTED = Layout(2, 1, 200)
REPLAYED = Layout(4, 1, 200)
# With this NAP the last gradient arrives midway between two decisions. With a NAP of 0.02 s the
# gradient would arrive at the time of the second decision, so chance would decide the order.
GRADIENTS, GRADIENT, NAP, STEPS = 40, 500_000, 0.0205, 9
LAYOUTS = [FITTED, Layout(4, 1, 200), Layout(4, 2, 200), Layout(8, 1, 50)]


# ---- on each rank ----


def call_together(call) -> tuple:
    """Make the call at the same time on all ranks; return when it began and ended on this rank."""
    import numpy as np

    import hvdlite as hvd
    import hvdlite.numpy

    latest = hvdlite.numpy.allreduce(np.array([time.monotonic()]), op=hvd.Max, name="begin")[0]
    time.sleep(max(0.0, latest + 3e-3 - time.monotonic()))
    begin = time.monotonic()
    call()
    return begin, time.monotonic()


def one_array(size: int) -> List[tuple]:
    import numpy as np

    import hvdlite.numpy

    x = np.ones(size // 4, "float32")
    y = np.zeros_like(x)

    def call() -> None:
        hvdlite.numpy.allreduce(x, name=f"x{size}", out=y)

    first = [call_together(call) for _ in range(2)][1]
    longest = hvdlite.numpy.allreduce(np.array([first[1] - first[0]]), name="longest")[0]
    return [call_together(call) for _ in range(min(MOST, max(LEAST, int(SECONDS / longest))))]


def backward(arrays) -> tuple:
    """Return the seconds of the first layer's gradient, from submission to result, and the seconds
    of the step. Instead of computing gradients, backward sleeps, so backward uses no core."""
    import hvdlite as hvd

    begin = time.perf_counter()
    for i in reversed(range(len(arrays))):
        due = begin + (len(arrays) - i) * NAP
        time.sleep(max(0.0, due - time.perf_counter()))
        hvd.allreduce_(arrays[i], name=f"gradient.{i}", priority=-i)
    submitted = time.perf_counter()
    arrays[0].wait_to_read()
    front = time.perf_counter() - submitted
    for array in arrays:
        array.wait_to_read()
    return front, time.perf_counter() - begin


def steps() -> List[tuple]:
    """Return the results of :func:`backward` for each step except the first."""
    import mxnet as mx

    arrays = [mx.nd.ones((GRADIENT // 4,)) for _ in range(GRADIENTS)]
    taken: List[tuple] = []
    for _ in range(STEPS):
        call_together(lambda: taken.append(backward(arrays)))
    return taken[1:]


def be_a_rank(folder: str, sizes: List[int]) -> None:
    """Time the calls of each size or, if there are no sizes, the steps; write the times."""
    import hvdlite as hvd

    hvd.init()
    found = {size: one_array(size) for size in sizes} if sizes else steps()
    harness.write(folder, hvd.rank(), found)


# ---- on the machine ----


def run_ranks(layout: Layout, sizes: List[int], **environment: str) -> List[Any]:
    """Run the ranks on emulated hosts; return each rank's results."""
    start = harness.on_hosts(layout.hosts, f"{layout.mbit}mbit", layout.ranks, BURST)
    arguments, environment = list(map(str, sizes)), {**WAITING, **environment}
    start += ["--transport", "tcp"]
    return list(harness.results(start, "sim.validate", arguments, 120, **environment))


def emulated(layout: Layout, sizes: List[int]) -> Dict[int, float]:
    """Return each size's median seconds from the last rank's begin to the last rank's end."""
    ranks = run_ranks(layout, sizes)
    return {size: statistics.median(spans([rank[str(size)] for rank in ranks])) for size in sizes}


def spans(ranks: List[List[tuple]]) -> List[float]:
    return [max(end for _, end in call) - max(begin for begin, _ in call) for call in zip(*ranks)]


class Model(NamedTuple):
    """The simulated network. Its one fitted parameter, ``part``, is the usable part of the rate."""

    part: float = 1.0

    def simulated(self, layout: Layout, size: int) -> float:
        """Return the time of an allreduce: the mean of simulations with three rates near part."""
        parts = [Model(self.part * near) for near in (1 - SHARP, 1, 1 + SHARP)]
        found = [sim.run(each.place(layout), [(size // 4, 1.0)], **{"yield": 0}) for each in parts]
        return statistics.mean(statistics.median(each["steps"]) for each in found)

    def place(self, layout: Layout) -> sim.Place:
        rate, cores = layout.mbit * 1e6 * self.part, len(os.sched_getaffinity(0))
        return sim.Place(layout.hosts, layout.ranks, rate, cores=cores, costs=COSTS)


def replay(model: Model) -> Tuple[List[List[str]], List[float]]:
    """Simulate steps that submit gradients one by one; return table rows and relative errors."""
    rows, errors = [], []
    tensors = [(GRADIENT // 4, 1 / GRADIENTS)] * GRADIENTS
    for name, ahead in (("priority", {}), ("FIFO", {"ahead": 0})):
        environment = {f"HVDLITE_BYTES_{k.upper()}": "0" for k in ahead}
        rounds = [run_ranks(REPLAYED, [], **environment) for _ in range(ROUNDS)]
        settings = {"forward": 0, "compute": GRADIENTS * NAP, "yield": 0, **ahead}
        found = sim.run(model.place(REPLAYED), tensors, **settings)
        for i, key in enumerate(("front", "steps")):
            real = min(statistics.median(max(rank[i] for rank in step) for step in zip(*ranks))
                       for ranks in rounds)  # fmt: skip
            made = statistics.median(found[key])
            title = {"front": "first layer's gradient", "steps": "step"}[key]
            rows.append([f"replay, {name}", title, *milliseconds(real, made)])
        errors.append(abs(made / real - 1))
    return rows, errors


def milliseconds(real: float, made: float) -> List[str]:
    return [f"{1e3 * real:.2f}", f"{1e3 * made:.2f}", f"{100 * (made / real - 1):+.1f} %"]


def compare() -> Tuple[List[List[str]], List[float], List[float]]:
    rows, errors = [], []
    rounds = [{layout: emulated(layout, SIZES) for layout in LAYOUTS} for _ in range(ROUNDS)]
    real = {(each, size): min(found[each][size] for found in rounds)
            for each in LAYOUTS for size in SIZES}  # fmt: skip
    model = Model(Model().simulated(FITTED, SIZES[-1]) / real[FITTED, SIZES[-1]])
    print(f"fitted on {FITTED}: {model.part:.3f} of the links' rate", flush=True)
    for (layout, size), seconds in real.items():
        made = model.simulated(layout, size)
        errors.append(abs(made / seconds - 1))
        rows.append([str(layout), f"{size:,} bytes", *milliseconds(seconds, made)])
    replayed, replay_errors = replay(model)
    return rows + replayed, errors, replay_errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    parser.add_argument("sizes", nargs="*", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        be_a_rank(args.rank, args.sizes)
        return
    import cluster

    lacks = sim.missing() or cluster.missing()
    if lacks:
        sys.exit(f"sim-validate: {lacks}")
    with suppress(OSError):  # real-time priority, if allowed, so that other programs disturb less
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(20))
    rows, errors, replay_errors = compare()
    print(markdown(["hosts x ranks", "", "emulated, ms", "simulated, ms", "error"], rows, texts=2))
    median, worst = statistics.median(errors), max(errors)
    print(f"replay error {100 * max(replay_errors):.1f} %")
    print(f"median error {100 * median:.1f} %\nmax error {100 * worst:.1f} %")
    if worst > WORST or median > MEDIAN or max(replay_errors) > REPLAY:
        sys.exit(1)


if __name__ == "__main__":
    main()
