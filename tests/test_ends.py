"""Random ends of a rank or of mpirun, under both launchers: never a success, a hang, a leftover.

``ENDS=200 pytest tests/test_ends.py -s`` runs 200 and prints each; ``SEED`` picks others.
"""

import os
import random
import re
import signal
import statistics
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import NamedTuple

import pytest
from jobs import MARK, MPI_SETTINGS, TESTS, find_mpirun, processes_of, wait_until
from scripts.ends import WAYS as OF_RANKS

COUNT = int(os.environ.get("ENDS", "4"))
SECONDS = 30  # for a job, imports included, on a busy machine; one that hangs takes for ever
WAYS = (*OF_RANKS, *(f"mpirun {name}" for name in ("SIGTERM", "SIGKILL", "SIGINT", "SIGHUP")))


class End(NamedTuple):
    how: str
    launcher: str
    ranks: int
    code: int
    seconds: float  # from when all ranks were up
    left: tuple  # processes, and files in /dev/shm
    output: str


def end(how: str, launcher: str, ranks: int) -> End:
    """Run one job to its end."""
    job = uuid.uuid4().hex
    environ = {**os.environ, **MPI_SETTINGS, MARK: job, "PYTHONPATH": str(TESTS)}
    line = [sys.executable, "-m", "hvdlite.launch"] if launcher == "hvdliterun" else [find_mpirun()]
    who = -1 if how.startswith("mpirun") else random.randrange(ranks)
    line += ["-n", str(ranks), sys.executable, str(TESTS / "scripts" / "ends.py"), how, str(who)]
    process = subprocess.Popen(
        line, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    output, up = "", []
    for text in process.stdout:
        output += text
        if "UP " in text:
            up.append(text.split("UP ")[1].split())
        if len(up) == ranks:
            break
    began = time.time()
    if who < 0:
        parent = int(up[0][1])
        mpirun = parent if launcher == "mpirun" else _parent_of(parent)
        os.kill(mpirun, signal.Signals[how.split()[1]])
    try:
        output += process.communicate(timeout=SECONDS)[0]
        wait_until(lambda: not processes_of(job), 5)
        seconds = time.time() - began
    except subprocess.TimeoutExpired:
        seconds = float("inf")
    left = tuple(processes_of(job))
    for pid in {*left, *([] if process.poll() is not None else [process.pid])}:
        os.kill(pid, signal.SIGKILL)

    def files() -> list:
        own = "|".join(words[2] for words in up) or "none"
        return [n for n in os.listdir("/dev/shm") if re.match(rf"hvdlite-({own})(-|$)", n)]

    wait_until(lambda: not files(), 3)
    left += tuple(files())
    return End(how, launcher, ranks, process.wait(), seconds, left, output)


def _parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.timeout(60 + 40 * COUNT)
def test_no_random_end_is_a_success_a_hang_or_leaves_something():
    seed = int(os.environ.get("SEED", time.time()))
    random.seed(seed)
    print(f"\nSEED={seed}")
    ends = []
    for i in range(COUNT):
        launcher = ("mpirun", "hvdliterun")[i % 2]
        one = end(random.choice(WAYS), launcher, random.choice((2, 3, 4)))
        print(
            f"{one.how:18} {launcher:10} {one.ranks} ranks: code {one.code:4}, {one.seconds:5.2f} s"
        )
        ends.append(one)
    for launcher in ("mpirun", "hvdliterun"):
        seconds = [one.seconds for one in ends if one.launcher == launcher]
        if seconds:
            median, worst = statistics.median(seconds), max(seconds)
            print(f"{launcher}: {len(seconds)} ends, median {median:.2f} s, worst {worst:.2f} s")
    bad = [one for one in ends if not one.code or one.seconds == float("inf") or one.left]
    assert not bad, "\n".join(f"{one._replace(output='')}\n{one.output[-2000:]}" for one in bad)
