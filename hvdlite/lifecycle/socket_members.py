"""The processes that make up a job without MPI, and how those that are left go on.

The names are those of ``members``, whose agreement MPI has; here it is a roll call.
"""

import contextlib
import json
import os
import socket
from typing import Any, Dict, List, Optional, Set

from hvdlite.core import start
from hvdlite.core.native import HvdliteError, failure_of, lib, new_error
from hvdlite.lifecycle import resets, script_end, star, watched
from hvdlite.lifecycle.limits import ELASTIC_LIMIT, limit_of
from hvdlite.lifecycle.reception import bound, listen
from hvdlite.lifecycle.roll_call import Door, Met, RollCall

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
        self.coming: Dict[int, Door] = {}  # newcomers that are ready
        self.news: Optional[int] = None  # a descriptor of the agent's pipe


_self = _Self()


def is_newcomer() -> bool:
    """Tell whether this process is to come into a running job, and has not yet."""
    return watched.NEWCOMER in os.environ and not have_died()


def first_numbers() -> Optional[List[int]]:
    """Return the numbers of those that begin together, if they are not their ranks."""
    return [_told()["number"]] if is_newcomer() else None


def _told() -> Dict[str, Any]:
    """Return what the launcher has told this newcomer."""
    return json.loads(os.environ[watched.NEWCOMER])


def is_elastic() -> bool:
    """Tell whether this process goes on when others die, and they when it does."""
    return _self.listener is not None


go_on_without_others = is_elastic


def have_died() -> bool:
    """Tell whether this process goes on without some that it was started with."""
    return _self.epoch > 0


def begin(world: Any) -> None:
    """Open this process's door, and learn of the others'. Collective, once in a job."""
    limit = limit_of(ELASTIC_LIMIT)
    if world is not _self.world:
        let_go()
        address = os.environ.get(watched.DOOR_ADDRESS) or world.address()
        _self.listener = listen([address], [0])
        door = _self.listener.getsockname()[:2]
        _self.doors = dict(zip(world.members(), world.allgather(door)))
        _self.number = world.members()[world.rank]
        _self.world, _self.key = world, world.key()
        if not is_newcomer():
            watched.report_door(*door)
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
    _self.met = _roll_call(_self.doors, coming()).meet(vote, _self.epoch, resets.count())
    _self.coming.clear()  # who has not come is gone
    return _self.met.verdict


def _roll_call(doors: Dict[int, Door], new: Dict[int, Door]) -> RollCall:
    assert _self.listener is not None
    limit = limit_of(ELASTIC_LIMIT)
    return RollCall(_self.number, doors, _self.listener, _self.key, _lost, new, limit)


def come_in() -> None:
    """Come to the next roll call of the job that this process is to come into.

    :raises HvdliteError: that job has ended.
    """
    assert _self.listener is not None
    doors = {int(number): (at[0], at[1]) for number, at in _told()["doors"].items()}
    call = _roll_call(doors, {})
    watched.report_door(*_self.listener.getsockname()[:2])
    _self.met = call.meet(0, 0, 0)
    if _self.met.verdict & resets.ALL_IS_DONE:
        raise HvdliteError("the others have ended")
    resets.set_count(_self.met.resets + (_self.met.verdict == resets.SOMETHING_FAILED))
    go_on()


def coming() -> Dict[int, Door]:
    """Return the doors of newcomers that are ready, as far as the launcher has told."""
    if _self.news is None and watched.NEWS in os.environ:
        with contextlib.suppress(OSError):
            _self.news = os.open(os.environ[watched.NEWS], os.O_RDONLY | os.O_NONBLOCK)
    if _self.news is not None:
        with contextlib.suppress(BlockingIOError):  # nothing new
            for line in os.read(_self.news, 1 << 16).splitlines():
                if line.startswith(watched.COMES):
                    told = json.loads(line[1:])
                    _self.coming[told["number"]] = (told["address"], told["port"])
    return _self.coming


def _lost() -> Set[int]:
    members = _self.world.members()
    return {members[rank] for rank in _self.world.watch.lost}


def shrink() -> None:
    """Go on without the dead.

    :raises HvdliteError: too few are left, or ranks have died too often.
    """
    go_on()
    resets.begin_with(len(_self.doors))


def go_on() -> None:
    """Go on with those that have met."""
    assert _self.met is not None
    gone = sorted(set(_self.doors) - set(_self.met.members))
    if gone and _self.number == _self.met.members[0]:
        watched.report_gone(gone)
    _self.epoch, _self.doors = _self.met.epoch, _self.met.doors


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
        script_end.flush()
        os._exit(failed.code)
