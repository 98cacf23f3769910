"""The processes above this one that were started with one and the same entry in the environment."""

import os
from typing import List, Optional

from hvdlite.core import agent_protocol, processes, start

# What the launcher itself has not, though it may run in a job of Slurm's: the first that is there.
_OF_RANKS = (
    *(
        agent_protocol.VARIABLE,
        "OMPI_COMM_WORLD_RANK",
        "PMIX_RANK",
        "PMI_RANK",
        "RANK",
        "SLURM_PROCID",
    ),
)


def of_the_launcher() -> List[int]:
    """Return this process, its parent and so on, up to the one that the launcher has started."""
    own = [name for name in _OF_RANKS if name in start.own_environment()]
    return processes.with_own(own[0]) if own else [os.getpid()]


def is_outermost() -> bool:
    """Tell whether this process is the rank, as far as can be told, and no child of the rank.

    A shell, or another program, may stand between the launcher and the rank: but not this Python.
    """
    if start.rank_above() is not None:
        return False
    try:
        return _program(os.getpid()) not in map(_program, of_the_launcher()[1:])
    except OSError:
        return True


def _program(pid: int) -> Optional[str]:
    return os.readlink(f"/proc/{pid}/exe")
