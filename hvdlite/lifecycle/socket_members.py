"""The processes that make up a job without MPI, and how those that are left go on.

The names are those of ``members``, whose agreement MPI has; here it is a roll call.
"""

import os
import socket
import sys
from typing import Any, Dict, List, Optional, Set

from hvdlite.core import start
from hvdlite.core.native import failure_of, lib, new_error
from hvdlite.lifecycle import resets, script_end, star
from hvdlite.lifecycle.reception import listen
from hvdlite.lifecycle.roll_call import Door, Met, RollCall, bound
from hvdlite.lifecycle.watch import ELASTIC_LIMIT, limit_of

_OF_DEATHS = ("rank dead", "rank left", "transport")  # kinds of errors


class _Self:
    """This process in an elastic job."""

    def __init__(self) -> None:
        self.world: Any = None  # the newest
        self.listener: Optional[socket.socket] = None  # behind the door
        self.doors: Dict[int, Door] = {}  # by number
        self.number = self.epoch = 0
        self.key = b""
        self.met: Optional[Met] = None  # those of the next job


_self = _Self()


def is_newcomer() -> bool:
    """Return False: none come."""
    return False


def is_elastic() -> bool:
    """Tell whether this process goes on when others die, and they when it does."""
    return _self.listener is not None


def be_elastic() -> None:
    """Do nothing: :func:`begin` is what makes a job elastic."""


def have_died() -> bool:
    """Tell whether this process goes on without some that it was started with."""
    return _self.epoch > 0


def begin(world: Any) -> None:
    """Open this process's door, and learn of the others'. Collective, once in a job."""
    limit = limit_of(ELASTIC_LIMIT)
    if world is not _self.world:
        let_go()
        _self.listener = listen([world.address()], [0])
        doors = world.allgather(_self.listener.getsockname()[:2])
        _self.number, _self.doors = world.rank, dict(enumerate(doors))
        _self.world, _self.key = world, world.key()
    world.watch.set_limit(limit)


def let_go() -> None:
    """Close the door, as in a child: it would hide that this process has ended."""
    if _self.listener is not None:
        _self.listener.close()
        _self.listener = None


def have_caused(error: BaseException) -> bool:
    """Tell whether a death may have caused the error; the roll call tells."""
    failed = failure_of(error)
    why = new_error()
    if failed is not None and failed.kind in _OF_DEATHS:
        return True
    return bool(lib.hvd_is_initialized()) and lib.hvd_check(why) != lib.HVD_OK


def revoke() -> None:
    """Do nothing: those that wait find this process's connections closed."""


def agreed(vote: int) -> int:
    """Return the bits that all votes have, 0 after a death: the same everywhere. Collective.

    :raises HvdliteError: some did not come in time, or this process is with the fewer.
    """
    _drop()
    assert _self.listener is not None
    limit = limit_of(ELASTIC_LIMIT)
    call = RollCall(_self.number, _self.doors, _self.listener, _self.key, _lost, limit)
    _self.met = call.meet(vote, _self.epoch)
    return _self.met.verdict


def _lost() -> Set[int]:
    members = _self.world.members()
    return {members[rank] for rank in _self.world.watch.lost}


def shrink() -> None:
    """Go on without the dead.

    :raises HvdliteError: too few are left, or ranks have died too often.
    """
    assert _self.met is not None
    _self.epoch = _self.met.epoch
    _self.doors = {number: _self.doors[number] for number in _self.met.members}
    resets.begin_with(len(_self.met.members))


def next_star(place: start.Place, patience: float) -> star.Star:
    """Return how those that are left have met, or meet now. Collective."""
    if _self.met is None:
        agreed(0)
        shrink()
    assert _self.met is not None
    met, _self.met = _self.met, None
    now = place._replace(rank=met.members.index(_self.number), size=len(met.members))
    found = star.Star(now, _self.key, met.epoch, patience, met.connections)
    for connection in met.connections.values():
        bound(connection, limit_of(ELASTIC_LIMIT))
    return found


def _drop() -> None:
    """Forget a roll call that came to nothing."""
    if _self.met is not None:
        for connection in _self.met.connections.values():
            connection.close()
    _self.met = None


def take(world: Any) -> None:
    """Go on with this world, in which this process's number is what it was."""
    if have_died():
        _self.world = world
        world.watch.set_limit(limit_of(ELASTIC_LIMIT))


def numbers() -> List[int]:
    """Return the numbers of the ranks of the next job, in its order."""
    return sorted(_self.doors)


def end_alone() -> None:
    """Exit now if this script failed in an elastic job: the others go on; for exit functions."""
    failed = script_end.failure()
    if is_elastic() and failed:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(failed.code)
