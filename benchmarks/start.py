"""Measures how long ranks of one host take to start, with hvdlite and with Gloo.

Run it by ``.venv-frameworks/bin/python -m benchmarks.start``. Time counts from the imports on.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time

from hvdlite.core.places import free_port

RANKS, TIMES = (1, 2, 4), 5
WAYS = ("gloo", "hvdlite", "hvdlite.init()")


def seconds(way: str, ranks: int) -> float:
    """Start ``ranks`` ranks; return the seconds of the slowest rank."""
    with tempfile.TemporaryDirectory() as folder:
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        started = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.start", way, folder],
                env={
                    **os.environ,
                    **place,
                    **{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)},
                },
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
    meet(folder)  # others may still read PyTorch's store, which rank 0 serves, so rank 0 waits
    hvdlite.shutdown() if way == WAYS[2] else dist.destroy_process_group()


def meet(folder: str) -> None:
    """Wait for all ranks, by files, without the libraries that are measured."""
    ranks = int(os.environ["WORLD_SIZE"])
    last = len(os.listdir(folder)) // ranks * ranks + ranks
    tempfile.mkstemp(dir=folder)
    while len(os.listdir(folder)) < last:
        time.sleep(0.001)


if __name__ == "__main__":
    if sys.argv[1:]:
        rank(*sys.argv[1:])
        sys.exit()
    print("ms, median of", TIMES, *(f"{way:>15}" for way in WAYS))
    for number in RANKS:
        medians = [statistics.median(seconds(w, number) for _ in range(TIMES)) for w in WAYS]
        print(f"{number} ranks        ", *(f"{1e3 * each:15.1f}" for each in medians), flush=True)
