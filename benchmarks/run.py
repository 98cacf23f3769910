"""Measures hvdlite and other systems in turn, and stores every result in build/bench.json.

    python -m benchmarks.run            five rounds; --quick: one, shorter
    python -m benchmarks.report         writes docs/benchmarks.md from the stored results

A work is a suite and a number of ranks. In a round each contestant does the work once. Each run
adds its rounds to those in the file; delete the file to start again. If a job fails or hangs, the
reason is stored with its results so far, and the next job starts.
"""

import argparse
import json
import os
import subprocess
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple

from tqdm import tqdm

from benchmarks import plan
from benchmarks.harness import Kept, limited
from benchmarks.mpis import launcher
from benchmarks.plan import Contestant

TIMEOUT = 180  # seconds that a job may take
IDLE = {"memory": 3}  # suite -> idle seconds at its end
SECONDS = {"held_sharded": 0.1, "held_trainer": 0.1, "memory": 0.3, "memory_zero_copy": 0.3}


def works(rounds: int) -> Iterator[Tuple[List[str], List[Contestant], int]]:
    """Yield names of works ("speed-2": a suite on 2 ranks), their contestants, number of rounds."""
    yield [f"speed-{ranks}" for ranks in plan.RANKS], plan.CONTESTANTS, rounds
    for suite in ("update", "update_large"):
        yield [f"{suite}-2"], plan.UPDATING, rounds
    once = {
        "held_sharded": (plan.HELD_RANKS, [plan.HVDLITE]),
        "held_trainer": (plan.HELD_RANKS, [plan.HVDLITE, plan.HOROVOD, plan.ZERO]),
        "memory": (plan.RANKS, [plan.HVDLITE, plan.HOROVOD]),
        "memory_zero_copy": (plan.RANKS, [plan.HVDLITE]),
    }
    for suite, (of_ranks, contestants) in once.items():
        yield [f"{suite}-{ranks}" for ranks in of_ranks], contestants, 1


def run(work: str, contestant: Contestant, seconds: float) -> Dict[str, Dict[str, Any]]:
    """Return the results of a contestant's ranks, with the reason if the job has failed.

    :param seconds: seconds for each case, unless the constant SECONDS names this suite.
    """
    suite, _, ranks = work.rpartition("-")
    if not contestant.takes(int(ranks)):
        return {}
    processes, python = contestant.processes(int(ranks)), contestant.python
    reason = contestant.left_out()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kept.json")
        command = [
            *launcher(contestant.mpi, python), "-n", processes, python, "-m", "benchmarks.worker",
            "--library", contestant.library, "--suite", suite, "--out", file,
            "--seconds", SECONDS.get(suite, seconds), "--idle", IDLE.get(suite, 0),
        ]  # fmt: skip
        if not reason:
            settings = contestant.settings(processes)
            reason = execute([str(word) for word in command], settings, TIMEOUT)
        kept = json.loads(file.read_text()) if file.exists() else {"rows": []}
    if reason:
        tqdm.write(f"{contestant.name}, {work}: {reason}")
        kept["error"] = reason
    return {contestant.name: kept}


def execute(command: List[str], settings: Dict[str, str], timeout: float) -> Optional[str]:
    """Run a command; return why it failed, or None."""
    done, why = limited(
        command, timeout, env={**os.environ, **settings}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
    )  # fmt: skip
    return why and f"{why}\n{done.stdout[-2000:]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("--rounds", type=int, default=plan.ROUNDS, help="(%(default)s)")
    add("--seconds", type=float, default=0.4, help="seconds of a case in a job (%(default)s)")
    add("--quick", action="store_true", help="one short round")
    add("--only", metavar="TEXT", default="", help="works with this text in their name: speed-2")
    args = parser.parse_args()
    rounds, seconds = (1, 0.15) if args.quick else (args.rounds, args.seconds)
    load, kept = os.getloadavg()[0], Kept(plan.KEPT)
    if load > 0.5:
        print(f"other jobs use this machine (load {load:.1f}): the results may be too slow")
    for names, contestants, times in works(rounds):
        chosen = [name for name in names if args.only in name]
        if chosen:
            kept.add(chosen, contestants, times, partial(run, seconds=seconds))


if __name__ == "__main__":
    main()
