"""This process's heap, its parent processes, and the environment they were started with."""

import ctypes
import os
from typing import List

from hvdlite.core.files import text_of


def with_own(name: str) -> List[int]:
    """Return this process, its parent and so on, while they have the variable as this one has it.

    :raises OSError: no /proc.
    """
    line = [os.getpid()]
    while has_own(parent(line[-1]), name):
        line.append(parent(line[-1]))
    return line


def has_own(pid: int, name: str) -> bool:
    """Tell whether a process was started with this process's value of the variable."""
    entry = os.fsencode(name) + b"=" + os.environb[os.fsencode(name)]
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return entry in file.read().split(b"\0")
    except OSError:  # another user's, as Slurm's daemon is
        return False


def parent(pid: int) -> int:
    """Return a process's parent; of the first process 0."""
    if pid == os.getpid():  # reads no file: a rank asks twice a second
        return os.getppid()
    return int(stat_of(f"/proc/{pid}/stat")[1])


def stat_of(path: str) -> List[str]:
    """Return the fields after the name in the stat file of a process or thread: proc_pid_stat(5).

    Field 0 is the state, field 3 of the manual.
    """
    return text_of(path).rpartition(")")[2].split()


def trim_heap() -> None:
    """Return freed memory to the system, where the C library can: glibc keeps it otherwise."""
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if give_back:
        give_back(0)
