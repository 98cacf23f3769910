"""This process's place among the ranks and hosts of its job."""

from typing import Callable, Optional

from hvdlite.core.module_state import ModuleState
from hvdlite.core.native import call, ffi, lib
from hvdlite.core.world import World


class _Job(ModuleState):
    def begin(self) -> None:
        self.world: Optional[World] = None
        self.homogeneous = False  # True: every host has the same number of ranks
        self.left = 0  # number of jobs that this process has left


_job = _Job()


def enter(world: World) -> None:
    """Store the world of the job that this process has joined. Collective."""
    _job.world = world
    _job.homogeneous = len(set(world.numbers(local_size()))) == 1


def leave(sound: bool) -> None:
    """Leave and forget the job's world. There is no world if ``init()`` was interrupted.

    :param sound: True if no rank has failed.
    """
    if _job.world is not None:
        _job.world.leave(sound)
    _job.world = None
    _job.left += 1


def world() -> World:
    assert _job.world is not None  # called only between init() and shutdown()
    return _job.world


def job_number() -> int:
    """Return a number that no other job of this process has."""
    return _job.left


def is_initialized() -> bool:
    """Return True between ``init()`` and ``shutdown()``."""
    return bool(lib.hvd_is_initialized())


def _where():
    topology = ffi.new("hvd_topology *")
    call(lib.hvd_where, topology)
    return topology


def _part(name: str, text: str) -> Callable[[], int]:
    def ask() -> int:
        return getattr(_where(), name)

    ask.__name__ = ask.__qualname__ = name
    ask.__doc__ = f"{text}\n\n:raises ValueError: before ``init()`` and after ``shutdown()``."
    return ask


rank = _part("rank", "Return this process's number in the job, from 0.")
size = _part("size", "Return the number of processes in the job.")
local_rank = _part("local_rank", "Return this process's number on its host, from 0.")
local_size = _part("local_size", "Return the number of processes of the job on this host.")
cross_rank = _part(
    "cross_rank",
    "Return this host's number, from 0, among the hosts that have a process of this local rank.",
)
cross_size = _part(
    "cross_size", "Return the number of hosts that have a process of this local rank."
)


def is_homogeneous() -> bool:
    """Return True if every host has the same number of processes of the job.

    :raises ValueError: before ``init()`` and after ``shutdown()``.
    """
    _where()
    return _job.homogeneous
