"""The membership of an elastic job: ranks continue after a death, and replacements join.

The launcher starts a replacement for each dead rank, and sends it the ports of the other ranks. A
ready replacement opens a port and connects to the leader of the next rerendezvous. The launcher
sends this port to the other ranks. At a commit, if rank 0 has the port, all ranks meet again.
"""

import contextlib
import json
import os
import sys
import time
from typing import Any, Dict, List, Optional, Sequence, Set

from hvdlite.bootstrap.acceptor import listen, reach
from hvdlite.bootstrap.handshake import LIFE, Hello
from hvdlite.core import agent_protocol, native, topology
from hvdlite.core.agent_protocol import FEWEST, RESETS
from hvdlite.core.limits import ELASTIC_LIMIT, EXIT, limit_of
from hvdlite.core.membership import ALL_IS_DONE, SOMETHING_FAILED, Meeting, Membership
from hvdlite.core.native import HvdliteError, failure_of, lib, new_error
from hvdlite.membership.lives import Lives
from hvdlite.membership.open_port import OpenPort
from hvdlite.membership.rerendezvous import Address, Known, Met, Rerendezvous

REACH_SECONDS = 10.0  # after a death, how long a rank tries to connect to the ranks that are left
_OF_WAITS = (native.STALLED, native.RANK_DEAD)  # errors of a rank that waited for others
_OF_DEATHS = (native.RANK_DEAD, native.RANK_LEFT, native.TRANSPORT)  # errors that a death may cause


class ElasticMembership(Membership):
    """What this process knows about the processes of an elastic job over sockets.

    A process has the same number in all jobs, whereas its rank can change after a death.
    """

    def __init__(self) -> None:
        self._world: Any = None  # the newest SocketWorld
        self._port: Optional[OpenPort] = None
        self._lives = Lives()
        self._addresses: Dict[int, Address] = {}  # ports of all ranks, by the processes' numbers
        self._number = self._epoch = 0
        self._key = b""
        self._met: Optional[Met] = None  # the result of a rerendezvous, until the next job begins
        self._coming: Dict[int, Address] = {}  # ports of the replacements that are ready
        # Processes to which this process could not connect at the start of the last job.
        self._unreached: Set[int] = set()
        self._news: Optional[int] = None  # descriptor of the pipe that NEWS names
        self._resets = 0  # how often a job has begun after deaths; equal on every rank

    def is_replacement(self) -> bool:
        return agent_protocol.REPLACEMENT in os.environ and not self._has_met_again()

    def first_numbers(self) -> Optional[List[int]]:
        return [_replacement_info()["number"]] if self.is_replacement() else None

    def is_elastic(self) -> bool:
        return self._port is not None

    def _has_met_again(self) -> bool:
        """Return True if this job began when ranks of an earlier job met after a death."""
        return self._epoch > 0

    # ---- in a job ----

    def entered(self, world: Any) -> None:
        if self._has_met_again():
            self._world = world
            self._connect_lives(world)
            world.watch.set_limit(limit_of(ELASTIC_LIMIT))
        elif os.environ.get(agent_protocol.ELASTIC) == "1":
            self.begin(world)

    def begin(self, world: Any) -> None:
        """Open this process's port, and exchange the ports with all ranks. Collective."""
        limit = limit_of(ELASTIC_LIMIT)
        if world is not self._world:
            self._close()
            address = os.environ.get(agent_protocol.ELASTIC_ADDRESS) or world.address()
            self._world, self._key, self._lives = world, world.key(), Lives()
            self._number = world.members()[world.rank]
            listener = listen([address], [0])
            self._port = OpenPort(listener, self._number, self._key, world.size)
            self._addresses = dict(zip(world.members(), world.allgather(self._port.address)))
            self._connect_lives(world)
        world.watch.set_limit(limit)

    def _connect_lives(self, world: Any) -> None:
        """Connect to each process to which ``Lives`` has no connection yet. Collective."""
        assert self._port is not None
        own, poll = self._number, world.life_check()
        known = dict(zip(world.members(), world.allgather(self._lives.numbers())))
        for other in sorted(set(known) - {own}):
            if other in known[own] and own in known[other]:
                continue
            if other < own:
                host, port = self._addresses[other]
                connection, _ = reach(host, [port], Hello(LIFE, own, 0, 0), self._key, poll)
            else:
                connection = self._port.await_one((LIFE, other), poll)
            self._lives.add(other, connection)

    def _close(self) -> None:
        if self._port is not None:
            self._port.close()
            self._lives.close()
            self._port = None

    def close_in_child(self) -> None:
        if self._port is not None:
            self._port.close_in_child()
            self._lives.close()
            self._port = None

    # ---- after a death, and at a commit with replacements ----

    def have_caused(self, error: BaseException) -> bool:
        # Only the error itself shows whether a death caused it: a death that is known now may also
        # be a result of the error, if all ranks have raised it.
        failed = _failure_in(error)
        if failed is None:
            return False
        if failed.kind == native.FAILED:
            return topology.rank() not in failed.ranks and _is_known_soon(failed.ranks)
        if failed.kind not in _OF_DEATHS:
            return False
        # A handle from an earlier job still raises the earlier job's error, so look for a death.
        return failed.kind == native.RANK_LEFT or not lib.hvd_is_initialized() or _is_known_soon()

    def give_up(self, error: Optional[BaseException]) -> None:
        failed = _failure_in(error) or _known_death()
        if self._port is not None and failed and failed.kind in _OF_WAITS:
            members = self._world.members()
            agent_protocol.report_given_up([members[rank] for rank in failed.ranks])

    def agree(self, vote: int) -> int:
        self._drop()
        meet = self._rerendezvous(self._addresses, self._ready_ones()).meet
        self._met = meet(vote, self._epoch, self._resets)
        self._coming.clear()  # replacements that did not connect are treated as dead
        return self._met.verdict

    def _rerendezvous(self, old: Dict[int, Address], new: Dict[int, Address]) -> Rerendezvous:
        assert self._port is not None
        limit = limit_of(ELASTIC_LIMIT)
        known = Known(old, new, self._lives, self._lost, limit, self._unreached)
        return Rerendezvous(self._number, self._port, self._key, known)

    def note_unreached(self, numbers: Set[int]) -> None:
        self._unreached = numbers

    def _lost(self) -> Set[int]:
        members = self._world.members()
        return {members[rank] for rank in self._world.watch.lost}

    def _drop(self) -> None:
        """Close the connections of a rerendezvous after which no job began."""
        if self._met is not None:
            for connection in self._met.connections.values():
                connection.close()
        self._met = None

    def accept_meeting(self) -> None:
        assert self._met is not None
        dead = sorted(set(self._addresses) - set(self._met.members))
        if dead and self._number == self._met.members[0]:
            agent_protocol.report_given_up(dead)
        self._epoch, self._addresses = self._met.epoch, self._met.addresses

    def drop_dead(self) -> None:
        self.accept_meeting()
        self._resets += 1
        _check_left(len(self._addresses), self._resets)

    def next_meeting(self) -> Optional[Meeting]:
        if not self._has_met_again():
            return None
        if self._met is None:
            self.agree(SOMETHING_FAILED)
            self.drop_dead()
        assert self._met is not None
        met, self._met = self._met, None
        rank = met.members.index(self._number)
        return Meeting(rank, met.members, met.epoch, self._key, met.connections, REACH_SECONDS)

    # ---- replacements ----

    def wait_for_replacements(self) -> None:
        """Report this process's port to the launcher, which may start replacements from now on.

        Only ``hvd.elastic.run`` calls this: in other scripts a replacement would train alone.
        """
        assert self._port is not None
        agent_protocol.report_port(*self._port.address)

    def may_grow(self) -> bool:
        most = int(os.environ.get(agent_protocol.MOST) or 0)
        return self.is_elastic() and topology.size() < most

    def are_ready(self) -> bool:
        return bool(self._ready_ones())

    def _ready_ones(self) -> Dict[int, Address]:
        """Return {number: address} of the ready replacements that the launcher has reported."""
        if self._news is None and agent_protocol.NEWS in os.environ:
            with contextlib.suppress(OSError):
                path = os.environ[agent_protocol.NEWS]
                self._news = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        if self._news is not None:
            with contextlib.suppress(BlockingIOError):  # the launcher has sent nothing new
                for line in os.read(self._news, 1 << 16).splitlines():
                    if line.startswith(agent_protocol.COMES):
                        ready = json.loads(line[1:])
                        self._coming[ready["number"]] = (ready["address"], ready["port"])
        return self._coming

    def join(self) -> None:
        try:
            self._join()
        except HvdliteError as error:
            print(f"hvdlite: this new rank is too late: {error}", file=sys.stderr, flush=True)
            sys.exit(agent_protocol.TOO_LATE)
        agent_protocol.report(agent_protocol.LET_IN)

    def _join(self) -> None:
        assert self._port is not None
        ports = _replacement_info()["ports"]
        others = {int(number): (at[0], at[1]) for number, at in ports.items()}
        meet = self._rerendezvous(others, {}).meet
        agent_protocol.report_port(*self._port.address)
        self._met = meet(0, 0, 0)
        if self._met.verdict & ALL_IS_DONE:
            raise HvdliteError("the other ranks have ended")
        self._resets = self._met.resets + (self._met.verdict == SOMETHING_FAILED)
        self.accept_meeting()


def _failure_in(error: Optional[BaseException]) -> Optional[HvdliteError]:
    """Return the failure of a collective that led to the error; None: another cause.

    Keras replaces a layer's exception by a copy without fields, whose __context__ is the original.
    """
    while error is not None:
        failed = failure_of(error)
        if failed is not None and failed.kind is not None:
            return failed
        error = error.__cause__ or error.__context__
    return None


def _is_known_soon(ranks: Optional[Sequence[int]] = None) -> bool:
    """Wait briefly for news of a death; return True if one of ``ranks`` (None: any rank) is dead.

    A rank that has raised an exception dies soon, unless its script catches the exception.
    """
    until = time.monotonic() + limit_of(EXIT)
    while _known_death() is None and time.monotonic() < until:
        time.sleep(0.01)
    known = _known_death()
    return known is not None and (ranks is None or not set(ranks).isdisjoint(known.ranks))


def _known_death() -> Optional[HvdliteError]:
    error = new_error()
    if not lib.hvd_is_initialized() or lib.hvd_check(error) == lib.HVD_OK:
        return None
    return native.exception_of(error)


def _replacement_info() -> Dict[str, Any]:
    """Return what the launcher sent to this replacement: its number, and the other ranks' ports."""
    return json.loads(os.environ[agent_protocol.REPLACEMENT])


def _check_left(left: int, resets: int) -> None:
    """Check the number of ranks left, and how often a job has begun after deaths.

    :raises HvdliteError: fewer ranks are left, or more resets have happened, than the user allows.
    """
    fewest = int(os.environ.get(FEWEST) or 1)
    if left < fewest:
        raise HvdliteError(
            f"ranks that are left: {left}; to go on, elastic training needs at least {fewest} "
            f"({FEWEST}, --min-np)"
        )
    limit = os.environ.get(RESETS)
    if limit and resets > int(limit):
        raise HvdliteError(
            f"ranks have died {resets} times, and elastic training goes on after at most {limit} "
            f"deaths ({RESETS}, --reset-limit): see above why they died, or raise the limit"
        )
