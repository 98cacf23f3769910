"""The ancestors of this process, up to the process that the launcher started as a rank."""

import os
from typing import List, Optional

from hvdlite.core import agent_protocol, start
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
    own = [name for name in _OF_RANKS if name in start.own_environment()]
    return processes.with_own(own[0]) if own else [os.getpid()]


def is_outermost() -> bool:
    """Return True if this process seems to be the rank itself, not a child of the rank.

    There may be a shell or another program between the launcher and the rank. A process that runs
    the same Python interpreter there is the rank.
    """
    if start.rank_above() is not None:
        return False
    try:
        return _program(os.getpid()) not in map(_program, of_the_launcher()[1:])
    except OSError:
        return True


def _program(pid: int) -> Optional[str]:
    return os.readlink(f"/proc/{pid}/exe")
