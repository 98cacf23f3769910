"""Ends a rank whose launcher is gone: mpirun, srun, torchrun, an agent. Reads the agent's news.

Open MPI's ranks do not notice that mpirun was killed by SIGKILL, as for lack of memory: they would
train for ever, and a rank that waits would wait for ever.
"""

import contextlib
import functools
import os
import select
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Callable, List

from hvdlite.core.native import lib
from hvdlite.lifecycle import ancestors, watched

LOOK_SECONDS = 0.5
TERM_SECONDS = 1.0  # from SIGTERM to SIGKILL, as mpirun has it
# What the launcher itself has not, though it may run in a job of Slurm's: the first that is there.
_OF_RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "RANK", "SLURM_PROCID")


@functools.lru_cache(maxsize=None)
def watch() -> None:
    """Watch from now on, in a thread; a second call does nothing."""
    try:
        pid, is_there = _agent() if watched.by_an_agent() else _starter()
        alone = os.getpgid(pid) != os.getpgrp()
    except (OSError, ValueError):  # no /proc, or it is gone already: nobody to watch
        return
    threading.Thread(target=_end_after, args=(pid, is_there, alone), daemon=True).start()


def _agent() -> tuple:
    pipe = Path(os.environ[watched.VARIABLE])  # /proc/PID/fd/N
    return int(pipe.parts[2]), pipe.exists


def _starter() -> tuple:
    """Return the process that has started this rank; between them there may be a user's shell."""
    own = [name for name in _OF_RANKS if name in os.environ]
    top = ancestors.with_own(own[0])[-1] if own else os.getpid()
    starter = ancestors.parent(top)

    def is_there() -> bool:
        try:
            return ancestors.parent(top) == starter
        except OSError:
            return False

    return starter, is_there


def _open_news() -> List[int]:
    """Return a new descriptor of the pipe by which the agent tells of hosts, if there is one."""
    try:
        return [os.open(os.environ[watched.NEWS], os.O_RDONLY | os.O_CLOEXEC)]
    except (KeyError, OSError):
        return []


def _pass_on(news: int) -> bool:
    """Let waits for the ranks of lost hosts fail; return False at the end of the news."""
    data = os.read(news, 1 << 16)
    for host in data.splitlines():
        lib.hvd_lose_host(host)
    return bool(data)


def _end_after(launcher: int, is_there: Callable[[], bool], alone: bool) -> None:
    news = select.poll()  # unlike select() it takes any descriptor
    for pipe in _open_news():
        news.register(pipe, select.POLLIN)
    while is_there():
        for pipe, _ in news.poll(1000 * LOOK_SECONDS):
            if not _pass_on(pipe):  # the agent has ended
                news.unregister(pipe)
    with contextlib.suppress(OSError, ValueError):  # nobody may read it any more
        print(f"hvdlite: the launcher (process {launcher}) is gone", file=sys.stderr, flush=True)
    for number in (signal.SIGTERM, signal.SIGKILL):
        if alone:  # the shell above and the workers below this process end with it
            os.killpg(0, number)
        else:
            os.kill(os.getpid(), number)
        time.sleep(TERM_SECONDS)
