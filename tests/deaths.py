"""Jobs in which a rank dies at a random moment: all waits of the other ranks must end in time.

``python tests/deaths.py --cases 500`` prints the longest waits of each class of cases, and each
case beyond its limit with the stacks of its ranks.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Dict, Iterable, List, NamedTuple, Optional

from jobs import MARK, MPI_SETTINGS, TESTS, find_mpirun, kill_all, processes_of
from places import free_port

SILENCE = 3.0  # HVDLITE_DATA_TIMEOUT_SECONDS: after this time a stopped rank counts as lost
EXIT = 2.0  # HVDLITE_EXIT_TIMEOUT_SECONDS
INIT = 6.0  # HVDLITE_INIT_TIMEOUT_SECONDS
SOON = 5.0  # docs/launch.md: a failed job has ended after this time
HANGS = 40.0  # after this time a case counts as hanging

REACHES = ("window", "sockets", "hosts", "mpi", "mpi without a window")
HOWS = ("SIGKILL", "SIGSTOP", "_exit", "exit", "raise", "after shutdown")
WHENS = ("init", "open", "collectives", "collectives", "collectives", "closing", "exit")
GROUPS = (["world"], ["set"], ["group"], ["world", "set"], ["world", "group"],
          ["set", "group"], ["world", "set", "group"])  # fmt: skip


class Ended(NamedTuple):
    """How a case ended: seconds from the death to the end of the last wait and last process."""

    case: dict
    waits: float
    job: float
    limit: float
    trouble: str  # what went wrong; "" if nothing did
    story: str  # the events and their seconds after the death

    def is_late(self, more: float = 0.0) -> bool:
        """Return whether the case hung or took more than ``more`` seconds beyond its limits."""
        late = max(self.waits - self.limit, self.job - job_limit_of(self.case))
        return bool(self.trouble) or late > more


def cases(seed: int, count: int, torch: bool = False) -> Iterable[dict]:
    """Return ``count`` cases; the same seed gives the same cases."""
    rng = random.Random(seed)
    for i in range(count):
        ranks = rng.choice((2, 3, 4))
        case = {
            "seed": f"{seed}.{i}",
            "reach": rng.choice(REACHES[:3] if torch else REACHES),
            "ranks": ranks,
            "groups": rng.choice((["torch"], ["world", "torch"])) if torch else rng.choice(GROUPS),
            "threads": rng.choice((1, 1, 2)),
            "how": rng.choice(HOWS),
            "when": rng.choice(WHENS[torch:]),  # not init: PyTorch's store waits for 30 minutes
            "victim": rng.randrange(ranks),
            "then": rng.choice(("raise", "shutdown", "end")),
            "helpers": 1 + i % 2,
            "team": 1 + i // 2 % 2,
        }
        others = [rank for rank in range(ranks) if rank != case["victim"]]
        if ranks == 2:  # a set of both ranks would equal the set of all
            case["groups"] = sorted({name.replace("set", "group") for name in case["groups"]})
        most = len(others) - ("set" in case["groups"])
        some = rng.sample(others, rng.randint(1, most))
        case["members"] = sorted([case["victim"], *some])
        if case["how"] == "after shutdown":
            case["how"] = rng.choice(("SIGKILL", "_exit", "exit", "raise"))
            case["when"] = "collectives"
            case["leaver"] = rng.choice(others)
            case["leaves"] = rng.random() * 0.3
        longest = {"init": 0.3, "open": 0.03, "collectives": 0.6, "closing": 0.02, "exit": 0.02}
        case["delay"] = rng.random() * longest[case["when"]]
        if case["reach"] == "hosts":
            case["host"] = True
        yield case


def _commands(case: dict) -> List[List[str]]:
    program = [str(TESTS / "scripts" / "dies.py"), json.dumps(case)]
    python, ranks, launcher = sys.executable, str(case["ranks"]), []
    hvdliterun = str(Path(python).parent / "hvdliterun")
    if case["reach"].startswith("mpi"):
        launcher = [find_mpirun(), "-n", ranks]
        if case["seed"][-1] in "02468":
            launcher = [hvdliterun, "-n", ranks]
    elif "leaver" in case:
        launcher = [hvdliterun, "--transport", "tcp", "-n", ranks]
    if launcher:
        return [[*launcher, python, *program]]
    return [[python, *program]] * case["ranks"]


def _environment(case: dict, job: str) -> Dict[str, str]:
    settings = {
        **os.environ, **MPI_SETTINGS, MARK: job,
        "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]),
        "HVDLITE_DATA_TIMEOUT_SECONDS": str(SILENCE),
        "HVDLITE_EXIT_TIMEOUT_SECONDS": str(EXIT),
        "HVDLITE_INIT_TIMEOUT_SECONDS": str(INIT if case["when"] == "init" else 60),
        "HVDLITE_THREADS": str(case["helpers"]),
        "HVDLITE_THREADS_BYTES": "65536",
        "HVDLITE_TEAM_RANKS": str(case["team"]),
        "HVDLITE_WINDOW": "0" if case["reach"] in ("sockets", "mpi without a window") else "1",
    }  # fmt: skip
    if case["reach"].startswith("mpi"):
        return settings
    size = str(case["ranks"])
    return {
        **settings, "HVDLITE_TRANSPORT": "tcp", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()), "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size,
    }  # fmt: skip


def limit_of(case: dict) -> float:
    """Return the documented seconds from the death until all waits of other ranks have ended."""
    if case["when"] == "init":  # ranks wait 10 s longer for a rank that has begun init()
        return INIT + (11 if case["how"] == "SIGSTOP" else 2)
    return 1.25 * SILENCE + 1 if case["how"] == "SIGSTOP" else SOON


def job_limit_of(case: dict) -> float:
    """Return the documented seconds from the death to the end of all processes."""
    # the exiting rank also waits so that it can tell its failure to ranks that call init() later
    exits = 2 * EXIT if case["when"] == "init" else EXIT
    return limit_of(case) + exits + (SOON if len(_commands(case)) == 1 else 0)


def run(case: dict) -> Ended:
    """Run a case to its end, or for ``HANGS`` seconds; then end all its processes."""
    job = uuid.uuid4().hex
    with tempfile.TemporaryDirectory(prefix="deaths-") as folder:
        case = {**case, "folder": folder}
        settings, commands, processes = _environment(case, job), _commands(case), []
        for rank, command in enumerate(commands):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if len(commands) > 1 else {}
            with open(f"{folder}/output", "a") as output:
                process = subprocess.Popen(
                    command, env={**settings, **own}, start_new_session=True,
                    stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                )  # fmt: skip
            processes.append(process)
        try:
            return _watch(case, job, processes, Path(folder))
        finally:
            for process in processes:
                kill_all(process, job)


def _events(folder: Path) -> Dict[int, List[dict]]:
    found = {}
    for file in folder.glob("[0-9]*"):
        lines = file.read_text().splitlines()
        found[int(file.name)] = [json.loads(line) for line in lines if line.endswith("}")]
    return found


def _death(events: Dict[int, List[dict]]) -> Optional[float]:
    times = [each["at"] for of in events.values() for each in of if each["what"] == "death"]
    return min(times, default=None)


def _watch(case: dict, job: str, processes: list, folder: Path) -> Ended:
    began = time.monotonic()
    by_hand = len(processes) > 1
    stopped = case["victim"] if case["how"] == "SIGSTOP" and by_hand else None
    others = [p for rank, p in enumerate(processes) if rank != stopped]
    over = 0.0
    while not over:
        if all(p.poll() is not None for p in others):
            over = time.monotonic()
        events = _events(folder)
        death = _death(events)
        if death and _all_wait_in_finalize(case, events):
            over = time.monotonic()
        late = death and time.monotonic() > death + job_limit_of(case)
        if late and not over and processes[0].args[0] == find_mpirun() and not _ranks(job):
            # Open MPI 5.0's mpirun sometimes hangs after its ranks have ended: two of its threads
            # wait for each other in PMIx_server_deregister_client().
            over = time.monotonic()
        if time.monotonic() - (death or began) > (HANGS if death else 2 * HANGS):
            break
        time.sleep(0.02)
    trouble = "" if over else _stacks(job)
    events = _events(folder)
    death = _death(events)
    if death is None:
        trouble = trouble or "no rank has died"
        death = began
    waits = [
        each["at"] - death
        for rank, of in events.items()
        for each in of
        if rank != case["victim"] and each["what"] in ("ended", "shut down")
    ]
    end = (over or time.monotonic()) - death
    story = [
        f"{each.pop('at') - death:7.2f} s, rank {rank}: {' '.join(map(str, each.values()))}"
        for rank, of in events.items()
        for each in of
    ]
    story = [*sorted(story), (folder / "output").read_text()[-3000:]]
    limit = limit_of(case)
    return Ended(case, max(waits, default=0.0), end, limit, trouble, "\n".join(story))


def _all_wait_in_finalize(case: dict, events: Dict[int, List[dict]]) -> bool:
    """Return whether all other ranks have left: MPI_Finalize then waits for the stopped rank."""
    others = [of for rank, of in events.items() if rank != case["victim"]]
    ended = len(others) == case["ranks"] - 1 and all(
        of and of[-1]["what"] == "exit" for of in others
    )
    good = not any(each["what"] == "failed" for of in others for each in of)
    return ended and good and case["how"] == "SIGSTOP" and case["reach"].startswith("mpi")


def _ranks(job: str) -> List[int]:
    """Return the process ids of the job's ranks, without the launcher's processes."""
    found = []
    for pid in processes_of(job):
        with contextlib.suppress(OSError, IndexError):  # the process has ended
            if Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1].endswith(b"/dies.py"):
                found.append(pid)
    return found


def _stacks(job: str) -> str:
    """Make each rank print the stacks of its threads; return what went wrong."""
    for pid in _ranks(job):
        os.kill(pid, signal.SIGUSR1)
    time.sleep(1)
    return "hangs"


def class_of(case: dict) -> str:
    how = f"{case['how']}{' after shutdown' if 'leaver' in case else ''}"
    return f"{case['reach']}, {how}, {case['when']}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=20)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--torch", action="store_true", help="groups of torch.distributed")
    parser.add_argument("--only", default="", help="pattern of the classes of cases to run")
    parser.add_argument("--slow", type=float, default=0.0, help="seconds added to each limit")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    chosen = list(cases(given.seed, given.cases, given.torch))
    chosen = [case for case in chosen if re.search(given.only, class_of(case))]
    longest: Dict[str, List[float]] = collections.defaultdict(lambda: [0, 0.0, 0.0])
    beyond = 0
    with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        for ended in pool.map(run, chosen):
            of = longest[class_of(ended.case)]
            of[:] = [of[0] + 1, max(of[1], ended.waits), max(of[2], ended.job)]
            if ended.is_late(given.slow):
                beyond += 1
                case = {k: v for k, v in ended.case.items() if k != "folder"}
                print(f"BEYOND: waits {ended.waits:.1f} s, job {ended.job:.1f} s, {case}")
                text = f"{ended.trouble}\n{ended.story}"
                print("    " + text.replace("\n", "\n    "), flush=True)
    for name, (count, waits, job) in sorted(longest.items()):
        print(f"{count:4d} {name}: waits {waits:.1f} s, job {job:.1f} s")
    print(f"{len(chosen)} cases, {beyond} beyond their limit")
    return bool(beyond)


if __name__ == "__main__":
    sys.exit(main())
