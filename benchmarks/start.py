"""Measures how long ranks of one host take to start, with hvdlite and with Gloo.

    .venv-frameworks/bin/python -m benchmarks.start

The time begins after the imports. A figure is the median of 5 starts of the slowest rank, in ms;
the minimum and maximum follow in brackets.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time

from benchmarks.harness import in_turn, markdown, of_rounds, parser_of, show
from hvdlite.core.places import free_port

RANKS, TIMES = (1, 2, 4), 5
WAYS = ("gloo", "hvdlite", "hvdlite.init()")


def seconds(way: str, ranks: int) -> float:
    """Start ``ranks`` ranks; return the seconds of the slowest rank."""
    with tempfile.TemporaryDirectory() as folder:
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        place["WORLD_SIZE"] = str(ranks)
        started = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.start", "--rank", way, folder],
                env={**os.environ, **place, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
            )
            for rank in range(ranks)
        ]
        return max(float(process.communicate()[0]) for process in started)


def rank(way: str, folder: str) -> None:
    import torch.distributed as dist

    import hvdlite
    import hvdlite.torch.backend  # noqa: F401

    meet(folder)
    begin = time.perf_counter()
    hvdlite.init() if way == WAYS[2] else dist.init_process_group(way)
    print(time.perf_counter() - begin, flush=True)
    meet(folder)  # rank 0 waits, because other ranks may still read the store that rank 0 serves
    hvdlite.shutdown() if way == WAYS[2] else dist.destroy_process_group()


def meet(folder: str) -> None:
    """Wait for all ranks, by files, without the libraries that are measured."""
    ranks = int(os.environ["WORLD_SIZE"])
    last = len(os.listdir(folder)) // ranks * ranks + ranks
    tempfile.mkstemp(dir=folder)
    while len(os.listdir(folder)) < last:
        time.sleep(0.001)


def main() -> None:
    parser = parser_of(__doc__, rounds=TIMES)
    parser.add_argument("--rank", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        return rank(*args.rank)
    lines = []
    for ranks in RANKS:
        taken = {way: [] for way in WAYS}
        for number in range(args.rounds):
            for way in in_turn(WAYS, number):
                taken[way].append(1e3 * seconds(way, ranks))
        cells = [of_rounds(taken[way], "{:.1f}".format) for way in WAYS]
        lines.append([f"{ranks} ranks", *cells])
    show(markdown(["ms", *WAYS], lines), args.page)


if __name__ == "__main__":
    main()
