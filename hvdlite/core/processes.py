"""This process's heap, its parent processes, and the environment they were started with."""

import ctypes
import os
from pathlib import Path
from typing import List


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
        return entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # another user's, as Slurm's daemon is
        return False


def parent(pid: int) -> int:
    """Return a process's parent; of the first process 0."""
    if pid == os.getpid():  # reads no file: a rank asks twice a second
        return os.getppid()
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def trim_heap() -> None:
    """Return freed memory to the system, where the C library can: glibc keeps it otherwise."""
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if give_back:
        give_back(0)
