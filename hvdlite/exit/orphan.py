"""Ends a rank when its launcher (mpirun, srun, torchrun, agent) has ended.

Open MPI's ranks do not notice when SIGKILL ends mpirun, for example for lack of memory. The ranks
would train, or wait, forever. This module also reads the agent's messages.
"""

import contextlib
import os
import re
import select
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Callable, List

from hvdlite.core import agent_protocol, member, start
from hvdlite.core.launchers import OPEN_MPI, PMI, PMIX, SRUN, TORCHELASTIC, TORCHRUN
from hvdlite.core.module_state import ModuleState
from hvdlite.core.native import lib
from hvdlite.machine import processes

LOOK_SECONDS = 0.5  # seconds between two checks that the launcher lives; chosen
TERM_SECONDS = 1.0  # seconds from SIGTERM to SIGKILL, as in mpirun
# Programs that are the first process of a system or a container, and so adopt orphans.
_FIRST = ("systemd", "init", "tini", "docker-init", "dumb-init", "catatonit", "s6-svscan", "runit")

# Variables that a rank has and its launcher lacks. The first one that is set counts, because the
# launcher may itself run in a job of Slurm.
_OF_RANKS = (
    agent_protocol.VARIABLE,
    *(each.rank for each in (OPEN_MPI, PMIX, PMI, TORCHRUN, SRUN)),
)


class _Watch(ModuleState):
    def begin(self) -> None:
        self.has_begun = False


_watch = _Watch()


def watch() -> None:
    """Watch the launcher from now on, in a thread; a second call does nothing.

    If the launcher died while this process was importing, another process has adopted this one, and
    this process ends here.
    """
    if _watch.has_begun:
        return
    _watch.has_begun = True
    try:
        pid, is_there = _agent() if agent_protocol.by_an_agent() else _starter()
    except (OSError, ValueError):  # there is no /proc, or the agent is outside of this container
        return
    # the launcher has ended; end the whole process group only if this process leads the group
    if not is_there():
        _end(pid, os.getpgrp() == os.getpid())
    alone = os.getpgid(pid) != os.getpgrp()
    threading.Thread(target=_end_after, args=(pid, is_there, alone), daemon=True).start()


def of_the_launcher() -> List[int]:
    """Return this process, its parent and so on, up to the process that the launcher started."""
    own = [name for name in _OF_RANKS if name in member.own_environment()]
    return processes.with_own(own[0]) if own else [os.getpid()]


def is_outermost() -> bool:
    """Return True if this process seems to be the rank itself, not a child of the rank.

    A shell or another program may be between the launcher and the rank. If a process between the
    launcher and this process runs the same Python interpreter, that process is the rank.
    """
    if member.rank_above() is not None:
        return False
    try:
        above = (os.readlink(f"/proc/{pid}/exe") for pid in of_the_launcher()[1:])
        return os.readlink("/proc/self/exe") not in above
    except OSError:
        return True


def _agent() -> tuple:
    """Return the agent's process id, and a function that returns whether the agent lives."""
    pipe = Path(os.environ[agent_protocol.VARIABLE])  # /proc/PID/fd/N
    if os.environ.get(agent_protocol.SPACE) != agent_protocol.own_space():
        raise ProcessLookupError
    return int(pipe.parts[2]), pipe.exists


def _starter() -> tuple:
    """Return the launcher's process id, and a function that returns whether the launcher lives."""
    top = of_the_launcher()[-1]
    starter = processes.parent(top)
    if _has_adopted(starter):
        return 0, lambda: False

    def is_there() -> bool:
        try:
            return processes.parent(top) == starter
        except OSError:
            return False

    return starter, is_there


def _has_adopted(pid: int) -> bool:
    """Return True if the parent ``pid`` is not a launcher, and so has adopted this process.

    Process 1 adopts orphans, but may be the launcher in a container, so its name decides. A parent
    without Python is not torchrun, nor is a process 1 without PyTorch. Parent 0 is outside of the
    container, so it has not adopted this process.
    """
    if TORCHELASTIC not in os.environ:
        return pid == 1 and _name(pid) in _FIRST
    try:
        maps = Path(f"/proc/{pid}/maps").read_text()
    except OSError:  # the process is another user's
        command = Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
        return pid == 1 and not re.search("python|torch", _name(pid) + command)
    return "python" not in maps or (pid == 1 and "torch" not in maps)


def _name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def _open_news() -> List[int]:
    """Open the pipe in which the agent names lost hosts; return a list of its descriptor, or [].

    Without MPI a rank watches the hosts itself, and the pipe has messages about replacements.
    """
    if start.without_mpi() is not None:
        return []
    try:
        return [os.open(os.environ[agent_protocol.NEWS], os.O_RDONLY | os.O_CLOEXEC)]
    except (KeyError, OSError):
        return []


def _pass_on(news: int) -> bool:
    """Read lost hosts' names, so that waits for their ranks fail; False: the agent has ended."""
    data = os.read(news, 1 << 16)
    for host in data.splitlines():
        lib.hvd_lose_host(host)
    return bool(data)


def _end_after(launcher: int, is_there: Callable[[], bool], alone: bool) -> None:
    news = select.poll()  # select() fails for descriptors from 1024 on
    for pipe in _open_news():
        news.register(pipe, select.POLLIN)
    while is_there():
        for pipe, _ in news.poll(1000 * LOOK_SECONDS):
            if not _pass_on(pipe):  # the agent has ended
                news.unregister(pipe)
    _end(launcher, alone)


def _end(launcher: int, alone: bool) -> None:
    with contextlib.suppress(OSError, ValueError):  # stderr may have no reader
        which = f" (process {launcher})" if launcher else ""
        text = f"hvdlite: the launcher{which} has ended, so this rank ends"
        print(text, file=sys.stderr, flush=True)
    for number in (signal.SIGTERM, signal.SIGKILL):
        if alone:  # also ends the shell above this process, and its worker processes
            os.killpg(0, number)
        else:
            os.kill(os.getpid(), number)
        time.sleep(TERM_SECONDS)
