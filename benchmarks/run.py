"""Measures hvdlite beside its peers, alternating, and keeps every result under build/bench.

    python benchmarks/run.py            five rounds; --quick: one, shorter
    python benchmarks/report.py         docs/benchmarks.md from what is kept

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

import plan
from plan import Contestant
from tqdm import tqdm

KEPT = plan.ROOT / "build" / "bench"
WORKER = Path(__file__).with_name("worker.py")


class Job(NamedTuple):
    """One start of mpirun."""

    contestant: Contestant
    ranks: int
    suite: str
    round: int
    seconds: float  # a case
    idle: float = 0

    @property
    def file(self) -> Path:
        return KEPT / f"{self.suite}-{self.ranks}-{self.contestant.slug}-{self.round}.json"


def jobs(rounds: int, seconds: float) -> Iterator[Job]:
    """All jobs, in the order in which they run: within a round everybody once."""
    for number in range(rounds):
        for ranks in plan.RANKS:
            for contestant in plan.CONTESTANTS:
                yield Job(contestant, ranks, "speed", number, seconds)
    for ranks in plan.RANKS:
        for contestant in (plan.HVDLITE, plan.HOROVOD):
            yield Job(contestant, ranks, "memory", 0, 0.3, idle=3)
        yield Job(plan.HVDLITE, ranks, "memory_zero_copy", 0, 0.3)
    for number in range(min(rounds, 3)):
        for contestant in [plan.HVDLITE, *(t.without for t in plan.TECHNIQUES)]:
            yield Job(contestant, 2, "ablation", number, seconds)


def run(job: Job, timeout: float) -> Optional[str]:
    """Run it; return why there is no result, or None."""
    contestant, processes = job.contestant, job.contestant.processes(job.ranks)
    if not contestant.python.exists():
        return f"{contestant.python.parent.parent.name} is missing: run `make peers`"
    command = [
        contestant.python.with_name("mpirun"), "-n", processes, contestant.python, WORKER,
        "--library", contestant.library, "--suite", job.suite, "--seconds", job.seconds,
        "--idle", job.idle, "--out", job.file,
    ]  # fmt: skip
    return execute([str(word) for word in command], contestant.settings(processes), timeout)


def execute(command: list, settings: Dict[str, str], timeout: float) -> Optional[str]:
    process = subprocess.Popen(
        command, env={**os.environ, **settings}, start_new_session=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
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
    KEPT.mkdir(parents=True, exist_ok=True)
    rounds, seconds = (1, 0.15) if args.quick else (args.rounds, args.seconds)
    todo = [job for job in jobs(rounds, seconds) if not args.only or args.only in job.file.name]
    if not args.keep:
        for file in KEPT.glob("*.json"):
            file.unlink()
    start, failed = time.monotonic(), 0
    for job in tqdm(todo, unit="job", dynamic_ncols=True):
        if job.file.exists():
            continue
        reason = run(job, args.timeout)
        if reason:
            failed += 1
            kept = json.loads(job.file.read_text()) if job.file.exists() else {"rows": []}
            job.file.write_text(json.dumps({**kept, "error": reason}, indent=1))
            tqdm.write(f"{job.contestant.name}, {job.ranks} ranks: {reason}")
    print(f"{len(todo)} jobs, {failed} failed, {time.monotonic() - start:.0f} s")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("--rounds", type=int, default=plan.ROUNDS, help="(%(default)s)")
    add("--seconds", type=float, default=0.4, help="a case and job (%(default)s)")
    add("--quick", action="store_true", help="one short round")
    add("--keep", action="store_true", help="measure only what has no result yet")
    add("--only", metavar="TEXT", help="jobs whose file name contains it")
    add("--timeout", type=float, default=120, help="seconds a job (%(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
