"""The ranks and hosts of the job, and this process's own."""

from typing import Optional

from hvdlite.core.native import call, ffi, lib
from hvdlite.core.world import World

_world: Optional[World] = None  # of the job
_homogeneous = False  # every host has equally many ranks
_left = 0  # jobs that this process has left


def enter(world: World) -> None:
    """Keep the world of the job that this process has joined. Collective."""
    global _world, _homogeneous
    _world = world
    _homogeneous = len(set(world.numbers(local_size()))) == 1


def leave(sound: bool) -> None:
    """Forget the job's world, which may be missing if ``init()`` was interrupted.

    :param sound: no rank has failed.
    """
    global _world, _left
    if _world is not None:
        _world.leave(sound)
    _world = None
    _left += 1


def world() -> World:
    """Return the processes of the job."""
    assert _world is not None  # between init() and shutdown()
    return _world


def job_number() -> int:
    """Return a number that no other job of this process has."""
    return _left


def is_initialized() -> bool:
    """Tell whether this process is between ``init()`` and ``shutdown()``."""
    return bool(lib.hvd_is_initialized())


def _where():
    topology = ffi.new("hvd_topology *")
    call(lib.hvd_where, topology)
    return topology


def rank() -> int:
    """Return this process's number in the job, from 0.

    :raises ValueError: before ``init()`` and after ``shutdown()``.
    """
    return _where().rank


def size() -> int:
    """Return the number of processes in the job.

    :raises ValueError: before ``init()`` and after ``shutdown()``.
    """
    return _where().size


def local_rank() -> int:
    """Return this process's number on its host, from 0.

    :raises ValueError: before ``init()`` and after ``shutdown()``.
    """
    return _where().local_rank


def local_size() -> int:
    """Return the number of processes of the job on this host.

    :raises ValueError: before ``init()`` and after ``shutdown()``.
    """
    return _where().local_size


def cross_rank() -> int:
    """Return this host's number, from 0, among those that have a process of this local rank.

    :raises ValueError: before ``init()`` and after ``shutdown()``.
    """
    return _where().cross_rank


def cross_size() -> int:
    """Return the number of hosts that have a process of this local rank.

    :raises ValueError: before ``init()`` and after ``shutdown()``.
    """
    return _where().cross_size


def is_homogeneous() -> bool:
    """Tell whether every host has the same number of processes of the job.

    :raises ValueError: before ``init()`` and after ``shutdown()``.
    """
    _where()
    return _homogeneous
