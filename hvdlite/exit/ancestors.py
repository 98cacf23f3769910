"""Finds the processes between a rank and its launcher."""

import os
from typing import List, Optional

from hvdlite.core import agent_protocol, member
from hvdlite.core.launchers import OPEN_MPI, PMI, PMIX, SRUN, TORCHRUN
from hvdlite.machine import processes

# Variables that a rank has and its launcher lacks. The first one that is set counts, because the
# launcher may itself run in a job of Slurm.
_OF_RANKS = (
    agent_protocol.VARIABLE,
    *(each.rank for each in (OPEN_MPI, PMIX, PMI, TORCHRUN, SRUN)),
)


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
        return _program(os.getpid()) not in map(_program, of_the_launcher()[1:])
    except OSError:
        return True


def _program(pid: int) -> Optional[str]:
    """Return the path of the program that the process runs."""
    return os.readlink(f"/proc/{pid}/exe")
