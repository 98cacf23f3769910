"""Refuses a job of one rank in a process that was started as one of several.

A launcher that MPI does not know or that does not fit this MPI (srun with PMI, the mpirun of
another MPI) starts N processes without the variables that ``core.start`` needs. In each process MPI
finds a job of one rank. N independent models would train, and the user would not notice.
"""

import contextlib
import json
import os
from typing import NamedTuple, Optional

from hvdlite.core import agent_protocol, launchers, member, places, start
from hvdlite.core.launchers import Launcher
from hvdlite.core.native import HvdliteError
from hvdlite.exit import forks
from hvdlite.machine import processes

VARIABLE = "HVDLITE_ALONE"  # 1: the user wants a job of one rank
# kinds of processes in TF_CONFIG that train
_TRAINS = ("chief", "master", "worker")


def refuse_in_a_child() -> None:
    """Raise in a process that a rank has started, because a child of a rank is not a rank.

    Do not raise if a launcher, or a program with PyTorch's store, has given the child its own job.

    :raises HvdliteError: names the rank's process, and what to do.
    """
    above = member.rank_above()
    if above is None or forks.is_child() or os.environ.get(VARIABLE, "0") not in ("", "0"):
        return
    if member.has_launcher_of_mpi() or start.without_mpi() not in (None, places.ALONE):
        return
    raise HvdliteError(
        f"init(): this process was started by process {above.pid}, which is a rank of a job, and a "
        "child is not a rank: call hvdlite.init() in the rank itself, start a job of the child's "
        f"own by hvdliterun, torchrun or mpirun, or set {VARIABLE}=1 to run the child as a job of "
        "one"
    )


class _Claim(NamedTuple):
    launcher: Launcher
    size: int
    # number of generations from the process that the launcher started to this process
    distance: int


def refuse_if_one_of_several(why: str) -> None:
    """Raise if a launcher started this process as one of several processes.

    The nearest launcher counts, because a script under `srun -n 4` may start `mpirun -n 1`. A batch
    script of Slurm is one process and not a step, whatever number of tasks its job has.

    :param why: why this process is a job of one rank; the error quotes this text.
    :raises HvdliteError: names the launcher's variables, and what to do.
    """
    if os.environ.get(VARIABLE, "0") not in ("", "0"):
        return
    claims = [claim for claim in map(_claim, launchers.UNKNOWN_TO_MPI) if claim]
    nearest = min(claims, key=lambda claim: (claim.distance, -claim.size), default=None)
    if nearest is None or nearest.size == 1:
        return
    launcher, size, _ = nearest
    names = [name for name in (launcher.rank, launcher.size) if name in os.environ]
    variables = ", ".join(f"{name}={os.environ[name]}" for name in names)
    raise HvdliteError(
        f"init(): {launcher.name} has started this process as one of {size} ({variables}), but "
        f"{why}: each process would train by itself. {launcher.advice.format(n=size)}. "
        f"Set {VARIABLE}=1 to run one process on purpose"
    )


def _claim(launcher: Launcher) -> Optional[_Claim]:
    if launcher.rank not in os.environ:
        return None
    size = _in_cluster() if launcher is launchers.TENSORFLOW else _number(launcher.size)
    size = max(size, _number(launcher.rank) + 1)
    # hvdliterun sets torchrun's variable RANK, too, so under its agent RANK says nothing
    if size < 1 or (launcher is launchers.TORCHRUN and agent_protocol.by_an_agent()):
        return None
    try:
        distance = len(processes.with_own(launcher.rank))
    except OSError:
        distance = 0
    return _Claim(launcher, size, distance)


def _in_cluster() -> int:
    """Return the number of training processes in TF_CONFIG; 0: this process does not train."""
    with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):
        config = json.loads(os.environ[launchers.TENSORFLOW.rank])
        if config["task"]["type"] in _TRAINS:
            return sum(len(config["cluster"].get(kind, ())) for kind in _TRAINS)
    return 0


def _number(variable: str) -> int:
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else -1
