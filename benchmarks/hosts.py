"""Allreduce between hosts: hvdlite beside MPI_Allreduce, and both beside the links.

    python -m benchmarks.hosts                        2, 4 and 8 hosts, links of 200 Mbit/s
    python -m benchmarks.hosts --layout 2x1 --layout 4x2 --bytes 1000000 --rate 1gbit

Float32 arrays of NumPy's, on hosts that tests/cluster.py makes of namespaces: as root, with
iproute2 and OpenSSH. The two take turns in the same processes, a call each; a time is the median of
the slowest rank's. The bound is that of the links: a host has to send 2(h-1)/h of the bytes, and of
what a link carries, 95.6 % are not headers of Ethernet, IP and TCP.

A late rank naps before it submits 4 KB; its own time counts from its submission on.
"""

import argparse
import json
import re
import statistics
import sys
import time
from pathlib import Path
from typing import Callable, Dict, List

from benchmarks import plan
from benchmarks.pages import parser_of, show

PAYLOAD = 0.956  # of a link's bytes: 1,448 of the 1,514 of a frame with TCP's time stamps
SECONDS = 4.0  # of calls of each size, about
LATE = 0.05  # seconds


# ---- on each rank ----


def be_a_rank(out: str, sizes: List[int]) -> None:
    import numpy as np
    from mpi4py import MPI

    import hvdlite as hvd
    import hvdlite.numpy

    comm = MPI.COMM_WORLD
    hvd.init()

    def seconds(call: Callable[[], object]) -> float:
        comm.Barrier()
        begin = time.perf_counter()
        call()
        return comm.allreduce(time.perf_counter() - begin, MPI.MAX)

    def medians(size: int) -> Dict[str, float]:
        x = np.ones(size // 4, "float32")
        y = np.empty_like(x)
        calls: Dict[str, Callable[[], object]] = {
            "hvdlite": lambda: hvdlite.numpy.allreduce(x, name=f"x{size}"),
            "MPI_Allreduce": lambda: comm.Allreduce(x, y),
        }
        first = max(seconds(call) for call in calls.values())  # connects, and negotiates the name
        rounds = min(50, max(3, int(SECONDS / first / 2)))
        taken: Dict[str, List[float]] = {name: [] for name in calls}
        for _ in range(rounds):
            for name, call in calls.items():
                taken[name].append(seconds(call))
        return {name: statistics.median(each) for name, each in taken.items()}

    def late() -> float:
        x = np.ones(1024, "float32")
        taken = []
        for _ in range(20):
            comm.Barrier()
            if comm.rank == comm.size - 1:
                time.sleep(LATE)
            begin = time.perf_counter()
            hvdlite.numpy.allreduce(x, name="late")
            taken.append(time.perf_counter() - begin)
        return comm.bcast(statistics.median(taken), comm.size - 1)

    found = {"sizes": {size: medians(size) for size in sizes}, "late": late()}
    if comm.rank == 0:
        Path(out).write_text(json.dumps(found))


# ---- on the machine ----


def run(layout: str, args: argparse.Namespace) -> Dict:
    """Make the hosts, run the ranks on them, and return what was measured."""
    hosts, ranks = map(int, layout.split("x"))
    arguments = [f"--bytes={size}" for size in args.sizes]
    yielding = {"OMPI_MCA_mpi_yield_when_idle": "1"}  # the hosts share the cores
    return plan.measure_on_hosts("hosts", arguments, hosts, args.rate, ranks, **yielding)


def bytes_a_second(rate: str) -> float:
    """Return what a link of a rate like 200mbit carries of data.

    :raises SystemExit: it is no such rate.
    """
    match = re.fullmatch(r"(\d+)(mbit|gbit)", rate)
    if not match:
        sys.exit(f"--rate {rate}: expected a whole number and mbit or gbit")
    return int(match[1]) * {"mbit": 1e6, "gbit": 1e9}[match[2]] / 8 * PAYLOAD


def rows_of(layout: str, found: Dict, rate: str) -> List[str]:
    hosts = int(layout.split("x")[0])
    rows = []
    for size, taken in found["sizes"].items():
        bound = 2 * (hosts - 1) / hosts * int(size) / bytes_a_second(rate)
        ours, theirs = taken["hvdlite"], taken["MPI_Allreduce"]
        rows.append(
            f"| {layout} | {int(size):,} | {1e3 * ours:.2f} | {ours / bound:.2f} | "
            f"{1e3 * theirs:.2f} | {theirs / ours:.2f} |"
        )
    late = f"4,096, a rank {1e3 * LATE:.0f} ms late"
    rows.append(f"| {layout} | {late} | {1e3 * found['late']:.2f} | | | |")
    return rows


def table(results: Dict[str, Dict], rate: str) -> str:
    lines = [
        f"Links of {rate}:",
        "",
        "| hosts x ranks | bytes | hvdlite, ms | over the bound | MPI_Allreduce, ms | "
        "MPI_Allreduce / hvdlite |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for layout, found in results.items():
        lines += rows_of(layout, found, rate)
    return "\n".join([*lines, ""])


def main() -> None:
    parser = parser_of(__doc__)
    add = parser.add_argument
    add("--layout", dest="layouts", action="append", help="hosts x ranks on each, more than once")
    add("--bytes", dest="sizes", type=int, action="append", help="of an array, more than once")
    add("--rate", default=plan.RATE, help="of each link, as tc writes it (%(default)s)")
    add("--rank", metavar="FILE", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.sizes = args.sizes or [64 * 1024, 1_000_000, 40_000_000]
    if args.rank:
        be_a_rank(args.rank, args.sizes)
        return
    bytes_a_second(args.rate)
    layouts = args.layouts or ["2x1", "4x1", "4x2", "8x1"]
    show(table({layout: run(layout, args) for layout in layouts}, args.rate), args.page)


if __name__ == "__main__":
    main()
