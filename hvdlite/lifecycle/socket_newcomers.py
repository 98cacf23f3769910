"""Processes that come into a running job without MPI, in the place of those that have died.

The launcher starts them, and tells them where the doors of the others are. One that is ready opens
its own door and comes to the next roll call; the launcher tells the others of that door. At a
commit they hold a roll call, if the first of them knows of one.
"""

import os
import sys

import numpy as np

from hvdlite.core import topology
from hvdlite.core.native import HvdliteError
from hvdlite.core.reduce_ops import Max
from hvdlite.lifecycle import socket_members as members
from hvdlite.lifecycle import watched
from hvdlite.lifecycle.watched import MOST, TOO_LATE
from hvdlite.numpy import allreduce

let_in = members.go_on  # with those that have come to the roll call


def begin() -> None:
    """Do nothing: the launcher sees what the job lacks."""


def call() -> None:
    """Do nothing: the launcher calls."""


def are_ready() -> bool:
    """Tell whether newcomers may be let in now: the same on all ranks. Collective."""
    if topology.size() >= int(os.environ.get(MOST) or 0) or not members.is_elastic():
        return False
    ready = not topology.rank() and bool(members.coming())
    return bool(allreduce(np.array([int(ready)]), name="elastic.newcomers", op=Max)[0])


def come_in() -> None:
    """Come into the job that the launcher has started this process for; exit if it has ended."""
    try:
        members.come_in()
    except HvdliteError as error:
        print(f"hvdlite: a new rank comes too late: {error}", file=sys.stderr, flush=True)
        sys.exit(TOO_LATE)
    watched.report(watched.LET_IN)
