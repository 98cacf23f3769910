"""Kills ranks at random: ``KILLS`` is the number of ranks, and ``SEED`` selects the moments."""

import os
import random
import statistics
import time
from typing import Callable, Dict, List


def wanted(by_default: int) -> int:
    return int(os.environ.get("KILLS", by_default))


def kill_many(sizes: Dict[str, int], job: Callable[[str, int], List[float]], kills: int) -> None:
    """Run jobs until `kills` ranks have been killed; print how long the other ranks needed.

    :param sizes: place of a job -> number of its ranks.
    :param job: called with a place and the number of ranks to kill; returns, for each rank killed
        during training, the seconds until the other ranks had completed a step.
    """
    seed = int(os.environ.get("SEED", time.time()))
    random.seed(seed)
    print(f"\nSEED={seed}")
    seconds, done = [], 0
    while done < kills:
        where = random.choice(list(sizes))
        now = random.randrange(1, sizes[where])
        found = job(where, now)
        print(f"{where}, {now} killed:", *(f"{each * 1e3:.0f} ms" for each in found))
        seconds += found
        done += now
    if seconds:
        print(
            f"{done} kills, {len(seconds)} in training: median {statistics.median(seconds):.3f} s, "
            f"worst {max(seconds):.3f} s until the next step had ended"
        )
