"""Start ranks as torchrun does, with only environment variables and without mpi4py.

Unlike torchrun, this module ends no other ranks when a rank fails: they must end themselves.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import uuid
from typing import Callable, Dict, Iterable, List, Optional, Sequence

import jobs
from jobs import MARK, MPI_SETTINGS, ROOT, TESTS, Job

LIKE_TORCHRUN = __file__  # a program that runs another program, see like_torchrun()
CARRIERS = ("mpi", "tcp")
WITHOUT_MPI = {"HVDLITE_TEST_WITHOUT_MPI": "1"}


def free_port() -> int:
    """Return a free port p for which p + 1 is free, too."""
    while True:
        with socket.socket() as one, socket.socket() as next_one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            with contextlib.suppress(OSError, OverflowError):
                next_one.bind(("127.0.0.1", port + 1))
                return port


def variables(rank: int, size: int, port: int, host: str = "127.0.0.1") -> Dict[str, str]:
    """Return the variables of torchrun and of the tests."""
    found = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "MASTER_PORT": port}
    return {
        **MPI_SETTINGS,
        **WITHOUT_MPI,
        **{name: str(value) for name, value in found.items()},
        "MASTER_ADDR": host,
        "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ["PYTHONPATH"]]),
    }


def start_ranks(
    size: int,
    *command: str,
    env: Optional[Dict[str, str]] = None,
    ranks: Optional[Iterable[int]] = None,
    timeout: float = 120,
    while_running: Optional[Callable[[List[subprocess.Popen]], None]] = None,
    prefixes: Optional[Sequence[Sequence[str]]] = None,
    host: str = "127.0.0.1",
) -> List[Job]:
    """Run ``python *command`` as ranks of a job; fail if a rank takes longer than `timeout`.

    :param ranks: the ranks that are started; None: all.
    :param prefixes: for each rank, words before its command.
    """
    mark, port, begun = uuid.uuid4().hex, free_port(), time.monotonic()
    shared_memory = jobs.leftovers_in_shm()
    started = [
        subprocess.Popen(
            [*(prefixes[rank] if prefixes else ()), sys.executable, *command],
            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, **variables(rank, size, port, host), MARK: mark, **(env or {})},
            text=True,
        )
        for rank in (range(size) if ranks is None else ranks)
    ]  # fmt: skip
    try:
        if while_running:
            while_running(started)
        return [_end_of(process, begun, timeout) for process in started]
    finally:
        for process in started:
            jobs.kill_all(process, mark)
        jobs.check_nothing_left(started[0], mark, shared_memory, "")


def on_carrier(carrier: str, ranks: int, *command: str, **options) -> Job:
    """Run ``python *command`` on ranks joined by MPI or, without MPI, by sockets."""
    if carrier == "mpi":
        return jobs.mpirun(ranks, *command, **options)
    ended = start_ranks(ranks, *command, **options)
    status = max((job.status for job in ended), key=abs)
    return Job(status, "".join(job.output for job in ended), max(job.seconds for job in ended))


_INITS = """
import json, os, sys, hvdlite as hvd
own = dict(os.environ)
for given in json.loads(sys.argv[1]):
    os.environ.update(given)
    try: hvd.init(); print("SIZE", hvd.size()); hvd.shutdown()
    except (ValueError, hvd.HvdliteError) as error: print(error)
    os.environ.clear(); os.environ.update(own)
"""


def init_with(given: Sequence[Dict[str, str]], **env: str) -> List[str]:
    """Call init() in one process with each of these variables; return the size or error of each."""
    lines = jobs.alone(_INITS, json.dumps(given), **env).splitlines()
    assert len(lines) == len(given), lines
    return lines


def results(ended: Iterable[Job]) -> Dict[int, dict]:
    """Return what the ranks have passed to ``report``; all ranks must have succeeded."""
    return {rank: each for job in ended for rank, each in jobs.assert_passed(job).results().items()}


def results_without(dead: Iterable[int], ended: Sequence[Job]) -> Dict[int, dict]:
    """Return the results of all ranks but the dead ones, after checking that they are complete."""
    left = {rank: job for rank, job in enumerate(ended) if rank not in dead}
    found = results(left.values())
    assert found.keys() == left.keys(), [job.output for job in left.values()]
    return found


def _end_of(process: subprocess.Popen, begun: float, timeout: float) -> Job:
    try:
        output, _ = process.communicate(timeout=max(begun + timeout - time.monotonic(), 0.1))
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        raise AssertionError(f"a rank took longer than {timeout} s\n{output}") from None
    return Job(process.returncode, output, time.monotonic() - begun)


def like_torchrun(words: List[str]) -> int:
    """Run a Python program as two ranks with torchrun's variables, and wait for them."""
    at = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "TORCHELASTIC_RUN_ID": "x"}
    ranks = [
        subprocess.Popen(
            [sys.executable, *words],
            env={**os.environ, **at, "WORLD_SIZE": "2", "RANK": rank, "LOCAL_RANK": rank},
        )
        for rank in "01"
    ]
    return max(rank.wait() for rank in ranks)


if __name__ == "__main__":
    sys.exit(like_torchrun(sys.argv[1:]))
