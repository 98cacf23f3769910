"""What /proc tells of a process: its parent, its variables, its state."""

import os
from typing import List

from hvdlite.machine.files import text_of


def with_own(name: str) -> List[int]:
    """Return this process and its nearest ancestors that have the same value of a variable.

    :param name: the variable whose value is compared.
    :raises OSError: there is no /proc.
    """
    line = [os.getpid()]
    while has_own(parent(line[-1]), name):
        line.append(parent(line[-1]))
    return line


def has_own(pid: int, name: str) -> bool:
    """Return True if process ``pid`` started with the value that variable ``name`` has here."""
    entry = os.fsencode(name) + b"=" + os.environb[os.fsencode(name)]
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return entry in file.read().split(b"\0")
    except OSError:  # another user's process, such as Slurm's daemon
        return False


def parent(pid: int) -> int:
    """Return the parent's process id; 0 for the first process of the system."""
    if pid == os.getpid():  # reads no file, because each rank calls this twice a second
        return os.getppid()
    return int(stat_of(f"/proc/{pid}/stat")[1])


def stat_of(path: str) -> List[str]:
    """Return the fields after the name in the stat file of a process or thread: proc_pid_stat(5).

    Element 0 is the state, which is field 3 in the manual.
    """
    return text_of(path).rpartition(")")[2].split()
