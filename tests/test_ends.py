"""Random ends of a rank, under both launchers: never a success, a hang, or a leftover.

``ENDS=200 pytest tests/test_ends.py -s`` runs 200 and prints each; ``SEED`` picks others.
"""

import os
import random
import statistics
import sys
import time

import pytest
from jobs import script
from scripts.ends import WAYS

COUNT = int(os.environ.get("ENDS", "4"))
SECONDS = 40  # for a job, imports included, on a busy machine; one that hangs takes for ever
LAUNCHERS = {"mpirun": (), "hvdliterun": (sys.executable, "-m", "hvdlite.launch")}


@pytest.mark.timeout(60 + SECONDS * COUNT)
def test_no_random_end_is_a_success_a_hang_or_leaves_something():
    """Of mpirun's ends: test_exit.py and launch/test_launch_local.py."""
    seed = int(os.environ.get("SEED", time.time()))
    random.seed(seed)
    print(f"\nSEED={seed}")
    seconds = []
    for i in range(COUNT):
        launcher = list(LAUNCHERS)[i % 2]
        how, ranks = random.choice(list(WAYS)), random.choice((2, 3, 4))
        who, starter = str(random.randrange(ranks)), LAUNCHERS[launcher]
        job = script(ranks, "ends", how, who, timeout=SECONDS, launcher=starter)
        print(f"{how:18} {launcher:10} {ranks} ranks: code {job.status}, {job.seconds:5.2f} s")
        assert job.status, f"{how} of rank {who}, {launcher}, {ranks} ranks\n{job.output}"
        seconds.append(job.seconds)
    print(f"median {statistics.median(seconds):.2f} s, worst {max(seconds):.2f} s")
