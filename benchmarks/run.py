"""Measures hvdlite beside its peers, alternating, and keeps every result under build/bench.

    python -m benchmarks.run            five rounds; --quick: one, shorter
    python -m benchmarks.report         docs/benchmarks.md from what is kept

A job that fails or hangs leaves its reason in place of its result, and the next one starts.
"""

import argparse
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Dict, Iterator, NamedTuple, Optional

from tqdm import tqdm

from benchmarks import plan
from benchmarks.harness import ROOT
from benchmarks.plan import Contestant

KEPT = ROOT / "build" / "bench"


class Job(NamedTuple):
    """One start of mpirun."""

    contestant: Contestant
    ranks: int
    suite: str
    round: int
    seconds: float  # a case
    idle: float = 0

    @property
    def file(self) -> str:
        return f"{self.suite}-{self.ranks}-{self.contestant.slug}-{self.round}.json"


def jobs(rounds: int, seconds: float) -> Iterator[Job]:
    """All jobs, in the order in which they run: within a round everybody once."""
    for number in range(rounds):
        for ranks in plan.RANKS:
            for contestant in plan.contestants(ranks):
                yield Job(contestant, ranks, "speed", number, seconds)
    for number in range(rounds):
        for contestant in plan.UPDATING:
            yield Job(contestant, 2, "update", number, seconds)
    for number in range(rounds):
        for contestant in plan.UPDATING:
            yield Job(contestant, 2, "update_large", number, seconds)
    for ranks in plan.HELD_RANKS:
        yield Job(plan.HVDLITE, ranks, "held_sharded", 0, 0.1)
        for contestant in (plan.HVDLITE, plan.HOROVOD, plan.ZERO):
            yield Job(contestant, ranks, "held_trainer", 0, 0.1)
    for ranks in plan.RANKS:
        for contestant in (plan.HVDLITE, plan.HOROVOD):
            yield Job(contestant, ranks, "memory", 0, 0.3, idle=3)
        yield Job(plan.HVDLITE, ranks, "memory_zero_copy", 0, 0.3)


def run(job: Job, folder: Path, timeout: float) -> Optional[str]:
    """Run it, with a file in the folder as result; return what went wrong, or None."""
    file, python = folder / job.file, job.contestant.python
    processes = job.contestant.processes(job.ranks)
    command = [
        python.with_name("mpirun"), "-n", processes, python, "-m", "benchmarks.worker",
        "--library", job.contestant.library, "--suite", job.suite, "--seconds", job.seconds,
        "--idle", job.idle, "--out", file,
    ]  # fmt: skip
    if python.exists():
        settings = job.contestant.settings(processes)
        reason = execute([str(word) for word in command], settings, timeout)
    else:
        reason = f"{python.parent.parent.name} is missing: run `make peers`"
    if reason:
        kept = json.loads(file.read_text()) if file.exists() else {"rows": []}
        file.write_text(json.dumps({**kept, "error": reason}, indent=1))
    return reason


def execute(command: list, settings: Dict[str, str], timeout: float) -> Optional[str]:
    """Run a command; return why it failed, or None. It is ended after ``timeout`` seconds."""
    process = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **settings}, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace",
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        return f"not done after {timeout:.0f} s\n{end(process)[-1000:]}"
    except BaseException:
        end(process)
        raise
    return f"exit status {process.returncode}\n{output[-2000:]}" if process.returncode else None


def end(process: subprocess.Popen) -> str:
    """Let mpirun end its ranks; then, if it does not, kill it."""
    process.terminate()
    try:
        return process.communicate(timeout=10)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0]


def main() -> None:
    args = parse_args()
    rounds, seconds = (1, 0.15) if args.quick else (args.rounds, args.seconds)
    todo = [job for job in jobs(rounds, seconds) if not args.only or args.only in job.file]
    make_ready(args.folder, args.keep)
    start, failed = time.monotonic(), 0
    for job in tqdm(todo, unit="job", dynamic_ncols=True):
        if (args.folder / job.file).exists():
            continue
        reason = run(job, args.folder, args.timeout)
        if reason:
            failed += 1
            tqdm.write(f"{job.contestant.name}, {job.ranks} ranks: {reason}")
    print(f"{len(todo)} jobs, {failed} failed, {time.monotonic() - start:.0f} s")


def make_ready(folder: Path, keep: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for file in () if keep else folder.glob("*.json"):
        file.unlink()
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"others use this machine (load {load:.1f}): what is measured now is not its best")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("--rounds", type=int, default=plan.ROUNDS, help="(%(default)s)")
    add("--seconds", type=float, default=0.4, help="a case and job (%(default)s)")
    add("--quick", action="store_true", help="one short round")
    add("--keep", action="store_true", help="measure only what has no result yet")
    add("--only", metavar="TEXT", help="jobs whose file name contains it")
    add("--folder", type=Path, default=KEPT, help="of the results (%(default)s)")
    add("--timeout", type=float, default=180, help="seconds a job (%(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
