"""Overlap and order on a busy wire: gradients that come one by one while the links carry others.

    python -m benchmarks.order                        four hosts, links of 200 Mbit/s
    python -m benchmarks.order --hosts 2 --rate 1gbit --gradients 40 --bytes 500000
    python -m benchmarks.order --ahead unset --ahead 0 --ahead 4000000

Backward makes the gradient of the last layer first; forward needs that of the first layer first.
Here backward is a nap for each gradient, so that it costs no core. Settings of HVDLITE_BYTES_AHEAD
are measured by turns in the same processes, one rank on each of some hosts that tests/cluster.py
makes of namespaces: as root, with iproute2 and OpenSSH.

The share is that of max(compute, communication) in the time of a step: 1 when the shorter one is
hidden. Communication is the time of all gradients submitted at once, in the fastest setting.
"""

import argparse
import os
import statistics
import time
from typing import Dict, List

from benchmarks import harness, plan
from benchmarks.harness import in_turn, markdown, parser_of, show

ELEMENT = 4  # bytes
UNSET = "unset"


# ---- on each rank ----


def step(arrays, nap: float) -> tuple:
    """Return the seconds of one backward: until the front layer's gradient is there since its
    submission, and until all are there since the beginning."""
    import hvdlite as hvd

    begin = time.perf_counter()
    for i in reversed(range(len(arrays))):
        due = begin + (len(arrays) - i) * nap
        time.sleep(max(0.0, due - time.perf_counter()))
        hvd.allreduce_(arrays[i], name=f"gradient.{i}", priority=-i)
    submitted = time.perf_counter()
    arrays[0].wait_to_read()
    front = time.perf_counter() - submitted
    for array in arrays:
        array.wait_to_read()
    return front, time.perf_counter() - begin


def measure(arrays, nap: float, ahead: str, rounds: int) -> List[tuple]:
    """Return what the slowest rank has measured in each round, in a job with that setting."""
    from mpi4py import MPI

    import hvdlite as hvd

    comm = MPI.COMM_WORLD
    hvd.shutdown()
    if ahead != UNSET:
        os.environ["HVDLITE_BYTES_AHEAD"] = ahead
    hvd.init()
    os.environ.pop("HVDLITE_BYTES_AHEAD", None)
    taken = []
    for _ in range(1 + rounds):  # the first one negotiates names
        comm.Barrier()
        ranks = comm.allgather(step(arrays, nap))
        taken.append(tuple(max(times) for times in zip(*ranks)))
    return taken[1:]


def be_a_rank(args: argparse.Namespace) -> None:
    import mxnet as mx
    from mpi4py import MPI

    arrays = [mx.nd.ones((args.bytes // ELEMENT,)) for _ in range(args.gradients)]
    turns = [ahead for number in range(2) for ahead in in_turn(args.ahead, number)]
    rows = [
        {"ahead": ahead, "nap": nap, "front": front, "whole": whole}
        for ahead in turns
        for nap in (0.0, *args.naps)
        for front, whole in measure(arrays, nap, ahead, args.rounds)
    ]
    harness.write(args.rank, MPI.COMM_WORLD.rank, rows)


# ---- on the machine ----


def run(args: argparse.Namespace) -> List[Dict]:
    """Make the hosts, run the ranks on them, and return what was measured."""
    arguments = [f"--ahead={ahead}" for ahead in args.ahead] + [f"--nap={n}" for n in args.naps]
    arguments += [f"--{name}={getattr(args, name)}" for name in ("gradients", "bytes", "rounds")]
    return next(harness.results(harness.on_hosts(args.hosts, args.rate), "order", arguments))


def table(rows: List[Dict], args: argparse.Namespace) -> str:
    def median(key: str, ahead: str, nap: float) -> float:
        found = [row[key] for row in rows if (row["ahead"], row["nap"]) == (ahead, nap)]
        return statistics.median(found)

    communication = min(median("whole", ahead, 0.0) for ahead in args.ahead)
    lines = []
    for nap in (0.0, *args.naps):
        for ahead in args.ahead:
            compute, whole = args.gradients * nap, median("whole", ahead, nap)
            share = f"{max(compute, communication) / whole:.2f}"
            times = [f"{1e3 * seconds:.0f}" for seconds in (nap, compute, whole)]
            front = f"{1e3 * median('front', ahead, nap):.0f}"
            lines.append([times[0], ahead, *times[1:], share, front])
    header = ["a gradient every", "`HVDLITE_BYTES_AHEAD`", "compute", "step", "share",
              "front layer's"]  # fmt: skip
    title = (
        f"{args.hosts} hosts, one rank each, links of {args.rate}; {args.gradients} gradients of "
        f"{args.bytes:,} bytes; ms, medians of {2 * args.rounds}:"
    )
    return f"{title}\n\n{markdown(header, lines, texts=0)}\n"


def main() -> None:
    parser = parser_of(__doc__, rate=plan.RATE)
    add = parser.add_argument
    add("--hosts", type=int, default=plan.HOSTS)
    add("--gradients", type=int, default=40, help="(%(default)s)")
    add("--bytes", type=int, default=500_000, help="of each gradient (%(default)s)")
    add("--nap", dest="naps", type=float, action="append", help="seconds, more than once")
    add("--ahead", action="append", help="HVDLITE_BYTES_AHEAD, more than once; unset: measured")
    add("--rounds", type=int, default=3, help="of each setting, twice (%(default)s)")
    add("--rank", metavar="FOLDER", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.naps = args.naps or [0.04, 0.02]
    args.ahead = args.ahead or ["0", UNSET]
    if args.rank:
        be_a_rank(args)
        return
    show(table(run(args), args), args.page)


if __name__ == "__main__":
    main()
