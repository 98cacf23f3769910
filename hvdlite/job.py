"""The life of a job: init() and shutdown()."""

import functools
import os
import sys

from hvdlite import at_exit
from hvdlite.bootstrap import servers, singleton_check
from hvdlite.core import (
    agent_protocol,
    frameworks,
    limits,
    member,
    places,
    registry,
    start,
    topology,
)
from hvdlite.core.agent_protocol import ELASTIC, FEWEST, MOST, RESETS
from hvdlite.core.log import logger
from hvdlite.core.membership import GOES_ON
from hvdlite.core.module_state import process
from hvdlite.core.native import ffi, lib
from hvdlite.core.topology import is_initialized
from hvdlite.core.world import World
from hvdlite.exit import script_end
from hvdlite.joined import UNEVEN, bootstrap, jobs, leave, membership
from hvdlite.machine import files
from hvdlite.monitor import recorder

INIT_PATIENCE_SECONDS = limits.limit_of(limits.INIT)
STAYING_SECONDS = 0.3  # how long join_other_job() waits for other ranks to leave the old job


def init(comm=None, process_sets=None) -> None:
    """Join the job. Collective over the ranks of ``comm``. A second call does nothing.

    :param comm: None for all processes that the launcher started; a list of ranks of MPI.COMM_WORLD
        (only these ranks call init); or an mpi4py communicator, which hvdlite duplicates.
    :param process_sets: a list of :class:`ProcessSet` to register now, the same on every rank.
        Horovod's "dynamic" is accepted and changes nothing: ``add_process_set`` always works.
    :raises ValueError: this process is not in ``comm``, or an HVDLITE_* variable is wrong.

    >>> import hvdlite as hvd
    >>> hvd.init()
    >>> hvd.rank() < hvd.size()
    True
    """
    with jobs.joining:
        if not is_initialized():
            limits.check()
            singleton_check.refuse_in_a_child()
            servers.serve()
            servers.rendezvous(INIT_PATIENCE_SECONDS)
            _join(comm, INIT_PATIENCE_SECONDS, process_sets)


def _join(comm, patience: float, process_sets) -> None:
    files.fill_standard_descriptors()
    start.decide(comm)
    bootstrap().begin(comm)
    at_exit.begin()  # before join(), which may fail because of another rank
    enter = functools.partial(_enter, process_sets)
    bootstrap().join(comm, patience, membership(), enter)


def _enter(process_sets, world: World) -> None:
    _check_alike(world)
    world.init()
    topology.enter(world)
    membership().entered(world)
    if not world.rank:
        logger.info("%d ranks, transport %s", world.size, bootstrap().transport)
    process.begin_job()
    member.note_member()
    if not jobs.has_joined:
        bootstrap().before_end(shutdown)
    jobs.has_joined, jobs.is_broken = True, False
    recorder.begin(world, bootstrap().transport)
    agent_protocol.report(agent_protocol.JOINED)
    registry.begin(process_sets)
    if "hvdlite.as_horovod" in sys.modules:  # this is a program for Horovod
        sys.modules["hvdlite.as_horovod"].set_variables()


def shutdown() -> None:
    """Leave the job; return when every rank has left, by this call or by its exit. Collective.

    Tensors that all ranks have submitted are still processed. Tensors that wait for this rank fail
    on the other ranks. ``init()`` may be called again afterwards. Without a job, do nothing.
    """
    if is_initialized():
        frameworks.submit_all()
        failed = script_end.failure_under_way()  # the call is in an `except` or a `finally`
        leave(f"it called shutdown(); {failed.reason if failed else UNEVEN}")


def begin_to_leave() -> None:
    """After a death: make waits for this rank fail, also in process sets without a dead rank."""
    lib.hvd_leave(lib.HVD_ALL_GROUPS, GOES_ON.encode())


def leave_broken() -> None:
    """Leave a job in which a rank has died. All living ranks call this."""
    if is_initialized():
        leave(GOES_ON)


def join_other_job(place: places.Place, patience: float) -> None:
    """Leave this process's job, if any, and join another job; all ranks of that job call this.

    Ranks that stay in the old job fail as if this rank had died.

    :param patience: seconds to wait for the other job's ranks.
    """
    with jobs.joining:
        reason = "it goes on with other ranks"
        if is_initialized() and not leave(reason, STAYING_SECONDS):
            lib.hvd_lose_host(ffi.NULL)
            leave(reason)
        start.set_place(place)
        _join(None, patience, None)


# These variables change which collectives a rank runs, so all ranks must have the same values.
_ALIKE = ("HVDLITE_GUARD_STEPS", "HVDLITE_HOROVOD_SUMS", ELASTIC, FEWEST, MOST, RESETS)


def _check_alike(world: World) -> None:
    """Raise ValueError on all ranks if a variable of ``_ALIKE`` differs among them. Collective."""
    everyone = world.allgather([os.environ.get(variable) or "0" for variable in _ALIKE])
    for variable, values in zip(_ALIKE, zip(*everyone)):
        other = next((rank for rank, value in enumerate(values) if value != values[0]), 0)
        if other:
            raise ValueError(
                f"{variable} is {values[0]} on rank 0, and {values[other]} on rank {other}: set "
                f"the same value on all ranks; mpirun needs `-x {variable}` to pass it to other "
                "hosts"
            )
