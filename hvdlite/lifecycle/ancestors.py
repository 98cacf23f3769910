"""The processes above this one that were started with one and the same entry in the environment."""

import os
from pathlib import Path
from typing import List


def with_own(name: str) -> List[int]:
    """Return this process, its parent and so on, as far as they have this one's variable.

    :raises OSError: no /proc.
    """
    entry = os.fsencode(name) + b"=" + os.environb[os.fsencode(name)]
    line = [os.getpid()]
    while _has(parent(line[-1]), entry):
        line.append(parent(line[-1]))
    return line


def parent(pid: int) -> int:
    if pid == os.getpid():  # without a look at files: a rank asks twice a second
        return os.getppid()
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _has(pid: int, entry: bytes) -> bool:
    """Tell whether a process was started with this entry of its environment."""
    try:
        return entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # another user's, as Slurm's daemon is
        return False
