"""The processes that make up an elastic job: how those that are left go on, and others come in.

The launcher starts new ranks in the place of those that have died, and tells them where the doors
of the others are. One that is ready opens its own door and comes to the next roll call; the
launcher tells the others of that door. At a commit they hold a roll call, if the first of them
knows of one.
"""

import contextlib
import json
import os
import sys
from typing import Any, Dict, List, Optional, Set

import numpy as np

from hvdlite.core import start, topology
from hvdlite.core.native import HvdliteError, failure_of, lib, new_error
from hvdlite.core.reduce_ops import Max
from hvdlite.lifecycle import resets, star, watched
from hvdlite.lifecycle.doorkeeper import Doorkeeper
from hvdlite.lifecycle.handshake import LIFE, Hello
from hvdlite.lifecycle.limits import ELASTIC_LIMIT, limit_of
from hvdlite.lifecycle.lives import Lives
from hvdlite.lifecycle.reception import bound, listen, reach
from hvdlite.lifecycle.roll_call import Door, Met, RollCall
from hvdlite.numpy import allreduce

REACH_SECONDS = 10.0  # after a death, for a rank to get its connections with all that are left
_OF_DEATHS = ("rank dead", "rank left", "transport")  # kinds of errors


class _Self:
    """This process in an elastic job."""

    def __init__(self) -> None:
        self.world: Any = None  # the newest
        self.keeper: Optional[Doorkeeper] = None  # of the door
        self.lives = Lives()
        self.doors: Dict[int, Door] = {}  # by number
        self.number = self.epoch = 0
        self.key = b""
        self.met: Optional[Met] = None  # those of the next job
        self.coming: Dict[int, Door] = {}  # newcomers that are ready
        self.unreached: Set[int] = set()  # by this rank, when it last began anew
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
    return _self.keeper is not None


def have_died() -> bool:
    """Tell whether this process goes on without some that it was started with."""
    return _self.epoch > 0


def begin(world: Any) -> None:
    """Open this process's door, and learn of the others'. Collective, once in a job."""
    limit = limit_of(ELASTIC_LIMIT)
    if world is not _self.world:
        _close()
        address = os.environ.get(watched.DOOR_ADDRESS) or world.address()
        _self.world, _self.key, _self.lives = world, world.key(), Lives()
        _self.number = world.members()[world.rank]
        listener = listen([address], [0])
        _self.keeper = Doorkeeper(listener, _self.number, _self.key, world.size)
        _self.doors = dict(zip(world.members(), world.allgather(_self.keeper.address)))
        _meet(world)
    world.watch.set_limit(limit)


def _meet(world: Any) -> None:
    """Make the connections that tell of lives, to those members that lack one. Collective."""
    assert _self.keeper is not None
    own, look = _self.number, world.looking()
    known = dict(zip(world.members(), world.allgather(_self.lives.numbers())))
    for other in sorted(set(known) - {own}):
        if other in known[own] and own in known[other]:
            continue
        if other < own:
            host, port = _self.doors[other]
            connection, _ = reach(host, [port], Hello(LIFE, own, 0, 0), _self.key, look)
        else:
            connection = _self.keeper.await_one((LIFE, other), look)
        _self.lives.add(other, connection)


def _close() -> None:
    if _self.keeper is not None:
        _self.keeper.close()
        _self.lives.close()
        _self.keeper = None


def let_go() -> None:
    """Close the descriptors in a child: they would hide that this process has ended."""
    if _self.keeper is not None:
        _self.keeper.let_go()
        _self.lives.close()
        _self.keeper = None


def wait_for_newcomers() -> None:
    """Let the launcher start new ranks for the dead: this one comes to roll calls with them.

    A script that does not call ``hvd.elastic.run`` lets nobody in: a new rank would train alone.
    """
    assert _self.keeper is not None
    watched.report_door(*_self.keeper.address)


def have_caused(error: BaseException) -> bool:
    """Tell whether a death may have caused the error; the roll call tells."""
    failed = failure_of(error)
    why = new_error()
    if failed is not None and failed.kind in _OF_DEATHS:
        return True
    return bool(lib.hvd_is_initialized()) and lib.hvd_check(why) != lib.HVD_OK


def agreed(vote: int) -> int:
    """Return the bits that all votes have, 0 after a death: the same everywhere. Collective.

    :raises HvdliteError: some did not come in time, or this process is with the fewer.
    """
    _drop()
    _self.met = _roll_call(_self.doors, coming()).meet(vote, _self.epoch, resets.count())
    _self.coming.clear()  # who has not come is gone
    return _self.met.verdict


def _roll_call(doors: Dict[int, Door], new: Dict[int, Door]) -> RollCall:
    assert _self.keeper is not None
    limit = limit_of(ELASTIC_LIMIT)
    own = _self.number
    apart = _self.unreached
    return RollCall(own, doors, _self.keeper, _self.key, _lost, new, limit, _self.lives, apart)


def are_ready() -> bool:
    """Tell whether new ranks may be let in now: the same on all ranks. Collective."""
    if not is_elastic() or topology.size() >= int(os.environ.get(watched.MOST) or 0):
        return False
    ready = not topology.rank() and bool(coming())
    return bool(allreduce(np.array([int(ready)]), name="elastic.newcomers", op=Max)[0])


def come_in() -> None:
    """Come into the job that the launcher has started this process for; exit if it has ended."""
    try:
        _come_in()
    except HvdliteError as error:
        print(f"hvdlite: a new rank comes too late: {error}", file=sys.stderr, flush=True)
        sys.exit(watched.TOO_LATE)
    watched.report(watched.LET_IN)


def _come_in() -> None:
    assert _self.keeper is not None
    doors = {int(number): (at[0], at[1]) for number, at in _told()["doors"].items()}
    call = _roll_call(doors, {})
    watched.report_door(*_self.keeper.address)
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


def note_unreached(numbers: Set[int]) -> None:
    """Note which ranks this one could not reach, for the next roll call, which parts them."""
    _self.unreached = numbers


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
        _meet(world)
        world.watch.set_limit(limit_of(ELASTIC_LIMIT))


def numbers() -> List[int]:
    """Return the numbers of the ranks of the next job, in its order."""
    return sorted(_self.doors)
