"""The job that this process has joined."""

import importlib
import threading
import time
from typing import Optional, Tuple

from hvdlite.bootstrap.bootstrap import Bootstrap
from hvdlite.core import agent_protocol, start, topology
from hvdlite.core.member import TRANSPORTS
from hvdlite.core.membership import Membership
from hvdlite.core.module_state import ModuleState
from hvdlite.core.native import BRIEFLY, lib, new_error
from hvdlite.monitor import recorder

UNEVEN = (
    "if it had fewer batches, give all ranks the same number of batches, as DistributedSampler "
    "does, or call hvd.join() after the last batch"
)


class Jobs(ModuleState):
    """The jobs that this process has joined."""

    def begin(self) -> None:
        self.joining = threading.RLock()  # held during init(), which several threads may call
        self.has_joined = False  # True: this process has ever joined a job
        self.end_is_watched = False  # True: at_exit.begin() has watched how the script ends
        self.way: Optional[Tuple[Bootstrap, Membership]] = None  # None: not decided yet
        self.is_broken = False  # True: the last job has failed, so other ranks may wait forever

    def begin_child(self) -> None:
        if self.way:
            self.way[1].close_in_child()


jobs = Jobs()


def _bootstrap_and_membership() -> Tuple[Bootstrap, Membership]:
    """Return how this process joins its job, and the membership of the job."""
    jobs.way = jobs.way or _choose_way()
    return jobs.way


def _choose_way() -> Tuple[Bootstrap, Membership]:
    """Return the bootstrap and the membership of this job's transport.

    Call this after ``start.decide()``, because importing the modules for MPI initializes MPI.
    """
    assert start.is_decided()
    named = (text.split(":") for text in TRANSPORTS[start.transport()])
    bootstrap, membership = (getattr(importlib.import_module(m), name) for m, name in named)
    return bootstrap(), membership()


def bootstrap() -> Bootstrap:
    return _bootstrap_and_membership()[0]


def membership() -> Membership:
    return _bootstrap_and_membership()[1]


def leave(reason: str, patience: float = float("inf")) -> bool:
    """Leave and free everything; return True if no rank failed.

    If other ranks do not leave in time, free nothing and return False.
    """
    lib.hvd_leave(lib.HVD_ALL_GROUPS, reason.replace("\0", "\\0").encode(errors="replace"))
    deadline = time.monotonic() + patience
    while not lib.hvd_wait_end(lib.HVD_ALL_GROUPS, BRIEFLY):
        if time.monotonic() > deadline:
            return False
    sound = lib.hvd_check(new_error()) == lib.HVD_OK
    jobs.is_broken = not sound
    recorder.before_leaving()
    lib.hvd_flight_bell(-1, b"")
    lib.hvd_close()
    recorder.end()
    agent_protocol.report(agent_protocol.LEFT)
    topology.leave(sound)
    return sound
