"""The roll call: after a death the ranks that are left meet, without MPI, and agree who they are.

Each rank of an elastic job has a door, a port that stays open. The lowest rank that lives leads:
the others come to its door; it asks at the doors of those that do not come. The answer is the
kernel's, so a rank that computes, or is stopped, is waited for. Nobody answers: the process has
ended (its host refuses), or the host has vanished (nothing comes back within the limit).
Newcomers come to the leader's door, too, and wait there for the next roll call.
The connections of the roll call are those of the next job's star.
"""

import contextlib
import errno
import functools
import math
import operator
import socket
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from hvdlite.core.native import HvdliteError
from hvdlite.lifecycle.handshake import (
    NEW,
    READY,
    Hello,
    Stranger,
    Visitor,
    introduce,
    receive,
    send,
)
from hvdlite.lifecycle.limits import PATIENCE, limit_of
from hvdlite.lifecycle.reception import Guest, Reception, bound

PAUSE_SECONDS = 0.02  # between two questions at a door
DOUBT_SECONDS = 1.0  # for a leader that leads only if the watch is right
NEWCOMER_SECONDS = 5.0  # for one that is ready but does not come; the others train on without it
Door = Tuple[str, int]


class Met(NamedTuple):
    """What the roll call has come to, the same on all ranks that are left."""

    verdict: int  # the bits that all votes have; 0: some are gone
    epoch: int
    members: List[int]  # their numbers: a rank's number stays its own in all epochs
    doors: Dict[int, Door]  # by number
    resets: int  # how often ranks have died
    connections: Dict[int, socket.socket]  # by new rank, as a Star has them


class RollCall:
    """One roll call, of one rank.

    :param own: this rank's number.
    :param doors: of the ranks of the job as it has been, by number; without this rank, it is new.
    :param lost: returns the numbers of those that the watch takes for lost, now.
    :param coming: the doors of newcomers that are known to be ready, by number.
    :param limit: seconds that a host may be silent.
    """

    def __init__(
        self, own: int, doors: Dict[int, Door], listener: socket.socket, key: bytes,
        lost: Callable[[], Set[int]], coming: Dict[int, Door], limit: float,
    ) -> None:  # fmt: skip
        self._own, self._old, self._listener, self._key = own, doors, listener, key
        self._limit, self._lost = limit, lost
        self._doors = {**doors, **coming}
        self._silent: Set[int] = set()
        self._asked: Set[int] = set()  # whatever the watch finds of them
        self._dead: Set[int] = set()
        self._questions: Dict[int, socket.socket] = {}  # connections to doors
        self._unanswered: Dict[int, float] = {}  # since when
        self._patience = limit_of(PATIENCE)
        self._ends = time.monotonic() + self._patience if own in doors else math.inf

    def meet(self, vote: int, epoch: int, resets: int) -> Met:
        """Return what all that are left have agreed on; newcomers have no vote.

        :param epoch: of the job as it has been.
        :raises HvdliteError: some did not come in time; or this rank is with the fewer; or it is a
            newcomer, and nobody is left.
        """
        while True:
            leader = min(self._living() & set(self._old), default=None)
            if leader is None:
                raise HvdliteError("the others have ended")
            met = None
            if leader != self._own:
                met = self._follow(leader, vote, epoch)
            else:
                with contextlib.suppress(_Follows):
                    return self._lead(vote, epoch, resets)
            if met:
                return met
            self._check_time({leader})
            time.sleep(PAUSE_SECONDS)

    def _living(self) -> Set[int]:
        self._silent |= self._lost() - self._asked
        return set(self._doors) - self._silent - self._dead

    def _check_time(self, awaited: Set[int]) -> None:
        if time.monotonic() > self._ends:
            raise HvdliteError(
                f"a rank has waited {self._patience:g} s for others to go on together after a "
                f"death, of those at {', '.join(self._doors[each][0] for each in sorted(awaited))}:"
                f" one computes, or stands still. {PATIENCE} sets how long"
            )

    # ---- the leader ----

    def _lead(self, vote: int, epoch: int, resets: int) -> Met:
        guests = self._receive()
        told, came = {self._own: (vote, epoch, self._doors[self._own])}, {}
        for number, connection in guests.items():
            try:
                connection.settimeout(self._patience if number in self._old else NEWCOMER_SECONDS)
                bound(connection, self._limit)
                told[number], came[number] = tuple(receive(connection)), connection
            except OSError:  # it has died since, or stands still
                connection.close()
        members = sorted(told)
        try:
            self._check_majority(members)
        except HvdliteError as error:
            _send_all(came, {"error": str(error)})
            raise
        votes = [told[number][0] for number in self._old if number in told]
        verdict = functools.reduce(operator.and_, votes) if len(votes) == len(self._old) else 0
        doors = [told[number][2] for number in members]
        epoch = max(each[1] for each in told.values()) + 1
        agreed = (verdict, epoch, members, doors, resets)
        _send_all(came, {"value": agreed})
        return _met(agreed, {members.index(number): each for number, each in came.items()})

    def _receive(self) -> Dict[int, socket.socket]:
        awaited = self._living() - {self._own}
        expected = {(READY if number in self._old else NEW, number) for number in awaited}

        alone = math.inf  # since when all but newcomers are here
        doubted, begun = self._doubted(self._own), time.monotonic()

        def look() -> None:
            nonlocal alone
            if doubted and time.monotonic() > begun + DOUBT_SECONDS:
                self._doubt(doubted)
                if any(self._ask(number) for number in doubted):
                    raise _Follows
            for guest in expected - set(reception.guests):
                if not self._answers(guest[1], False):
                    expected.discard(guest)
            awaited = expected - set(reception.guests)
            ranks = {number for purpose, number in awaited if purpose == READY}
            alone = math.inf if ranks else min(alone, time.monotonic())
            if ranks:
                self._check_time(ranks)
            elif time.monotonic() > alone + NEWCOMER_SECONDS:
                expected.difference_update(awaited)

        hello = Hello(READY, self._own, 0, 0)
        reception = _Muster(self._listener.dup(), hello, self._key, expected, look)
        try:
            guests = reception.wait()
        except BaseException:
            for connection in reception.guests.values():
                connection.close()
            raise
        finally:
            for question in self._questions.values():
                question.close()
            self._questions.clear()
        return {number: connection for (_, number), connection in guests.items()}

    def _check_majority(self, members: List[int]) -> None:
        """The others may live, behind a broken network, and train on: only one side may."""
        here = set(members) & set(self._old)
        silent = (self._silent - here) & set(self._old)
        if len(here) < len(silent) or (len(here) == len(silent) and min(silent) < min(here)):
            raise HvdliteError(
                f"{len(here)} of the ranks are left on this side of the network, and "
                f"{len(silent)} do not answer: these may train on without this side, which ends. "
                "More than half go on, or half with the lowest rank"
            )

    # ---- the others ----

    def _follow(self, leader: int, vote: int, epoch: int) -> Optional[Met]:
        """Come to the leader's door; None: it is gone, or lets nobody in yet."""
        if not self._answers(leader, True):
            return None
        question = self._questions.pop(leader)
        doubted = self._doubted(leader)
        try:
            rest = max(self._ends - time.monotonic(), PAUSE_SECONDS)
            patience = None if math.isinf(rest) else rest
            question.settimeout(DOUBT_SECONDS if doubted else patience)
            purpose = READY if self._own in self._old else NEW
            introduce(question, Hello(purpose, self._own, 0, 0), self._key)
            question.settimeout(patience)
            send(question, [vote, epoch, self._listener.getsockname()[:2]])
            told = receive(question)
        except (OSError, Stranger):
            question.close()
            self._doubt(doubted)
            return None
        if "error" in told:
            question.close()
            raise HvdliteError(told["error"])
        return _met(told["value"], {0: question})

    # ---- doors ----

    def _doubted(self, leader: int) -> Set[int]:
        """Return who would lead if this rank's watch were wrong, as the others may know."""
        return {n for n in self._lost() - self._asked if n in self._old and n < leader}

    def _doubt(self, doubted: Set[int]) -> None:
        """Ask at their doors, whatever the watch finds."""
        self._silent -= doubted - self._asked
        self._asked |= doubted

    def _answers(self, number: int, wait: bool) -> bool:
        """Ask at a rank's door; False: it is gone. Without ``wait`` the answer may take calls."""
        while True:
            found = self._ask(number)
            if found is False or not wait:
                return found is not False
            if found:
                return True
            time.sleep(PAUSE_SECONDS / 10)

    def _ask(self, number: int) -> Optional[bool]:
        """Return whether a process is behind that door; None: not known yet."""
        if number not in self._living():
            return False
        question = self._questions.get(number)
        if question is None:
            question = self._questions[number] = _begin_to_connect(self._doors[number])
            bound(question, self._limit)
        now = time.monotonic()  # before: what stops this process is no silence of the other's
        code = question.connect_ex(tuple(self._doors[number]))
        if code in (0, errno.EISCONN) and _is_open(question):
            self._unanswered.pop(number, None)
            return True
        since = self._unanswered.setdefault(number, now)
        if code == errno.ECONNREFUSED:
            self._dead.add(number)
        elif now - since > self._limit:
            self._silent.add(number)
        gone = number in self._dead | self._silent
        if gone or code not in (errno.EALREADY, errno.EINPROGRESS):
            self._questions.pop(number).close()
        return False if gone else None


class _Follows(Exception):
    """This rank does not lead: its watch was wrong."""


class _Muster(Reception):
    """A reception that goes on when one that has come is gone again. Questions are no strangers."""

    LOOK_SECONDS = 0.01

    def _let_in(self, visitor: Visitor, hello: Hello) -> None:
        if hello.purpose == NEW:  # it may come before its news
            self._expected.add((NEW, hello.rank))
        super()._let_in(visitor, hello)

    def _ended(self, guest: Guest) -> None:
        connection = self.guests.pop(guest)
        self._selector.unregister(connection)
        connection.close()

    def _turn_away(self, visitor: Visitor, why: str) -> None:
        self._drop(visitor)


def _met(agreed: Sequence[Any], connections: Dict[int, socket.socket]) -> Met:
    verdict, epoch, members, doors, resets = agreed
    by_number = {number: (door[0], door[1]) for number, door in zip(members, doors)}
    return Met(verdict, epoch, members, by_number, resets, connections)


def _begin_to_connect(door: Door) -> socket.socket:
    question = socket.socket(socket.AF_INET6 if ":" in door[0] else socket.AF_INET)
    question.setblocking(False)
    question.connect_ex(tuple(door))
    return question


def _is_open(question: socket.socket) -> bool:
    try:
        return bool(question.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return True
    except OSError:
        return False


def _send_all(connections: Dict[int, socket.socket], value: Dict[str, Any]) -> None:
    for connection in connections.values():
        with contextlib.suppress(OSError):
            send(connection, value)
