"""The rerendezvous: after a death the ranks that live agree on the next job.

Each rank of an elastic job has an open port. The lowest rank that lives is the leader, and all
other ranks connect to its port. Only ``Lives`` tells which ranks live, because a stranger may
answer at a port. So the leader also waits for a rank that computes or is stopped. Replacements
connect to the leader's port, too, and wait there for the next rerendezvous. A replacement has no
``Lives`` yet: it treats a rank as dead if the rank does not prove its identity within the limit.
The next job exchanges values over the connections of the rerendezvous.
"""

import contextlib
import functools
import math
import operator
import socket
import time
from typing import Any, Callable, Collection, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from hvdlite.bootstrap.acceptor import Patient, Peer, bound
from hvdlite.bootstrap.handshake import LIFE, NEW, READY, Hello, Stranger, introduce
from hvdlite.bootstrap.values import receive, send
from hvdlite.core import agent_protocol
from hvdlite.core.limits import ELASTIC_LIMIT, PATIENCE, limit_of
from hvdlite.core.native import HvdliteError
from hvdlite.membership.lives import ANSWERS, DEAD, SILENT, Lives
from hvdlite.membership.open_port import OpenPort

LOOK_SECONDS = 0.01  # pause between two checks that the other ranks live
PAUSE_SECONDS = 0.02  # time between two attempts to connect
# Time limit of one attempt. Another attempt follows, because the kernel's own retries get rarer.
CONNECT_SECONDS = 1.0
DOUBT_SECONDS = 1.0  # wait before contacting ranks that HostWatch, which may err, calls lost
REPLACEMENT_SECONDS = 5.0  # how long to wait for a replacement that was reported ready
Address = Tuple[str, int]
_LEFT = (
    "this rank did not answer in time, so the other ranks have trained on or ended: this rank "
    f"ends. {PATIENCE} and {ELASTIC_LIMIT} set how long the other ranks wait"
)
_APART = (
    "this rank and a lower rank do not reach each other, although other ranks reach both: the "
    "other ranks train on without this rank"
)


class Met(NamedTuple):
    """The next job, on which the living ranks agree; only ``connections`` differs by rank."""

    verdict: int  # the bits that are set in all votes; 0: a rank is dead
    epoch: int
    members: List[int]  # the processes' numbers, which stay the same in all epochs, by rank
    addresses: Dict[int, Address]  # by number
    resets: int  # how often a job has begun after deaths
    connections: Dict[int, socket.socket]  # by rank in the next job, for its Exchange


class Known(NamedTuple):
    """What a rank knows about the other ranks when a rerendezvous begins."""

    old: Dict[int, Address]  # ports of the last job's ranks, by number
    coming: Dict[int, Address]  # ports of ready replacements, by number
    lives: Lives  # this rank's connections to the other ranks of the last job
    lost: Callable[[], Set[int]]  # returns the ranks whose hosts HostWatch reports lost
    limit: float  # seconds after which a silent host counts as lost
    # Ranks to which this rank could not connect at the start of the last job.
    unreached: Collection[int] = ()


class Rerendezvous:
    """A meeting of the living ranks after a death; ``own``: the number of this process."""

    def __init__(self, own: int, port: OpenPort, key: bytes, known: Known) -> None:
        self._own, self._port, self._key = own, port, key
        self._old, _, self._lives, self._lost, self._limit, unreached = known
        self._unreached = frozenset(unreached)
        self._addresses = {**known.old, **known.coming}
        self._silent: Set[int] = set()
        # Ranks that this rank contacts even if HostWatch reports them lost.
        self._asked: Set[int] = set()
        self._dead: Set[int] = set()
        self._unproved: Dict[int, float] = {}  # since when this rank waits for a rank's proof
        self._patience = limit_of(PATIENCE)
        self._ends = time.monotonic() + self._patience if own in known.old else math.inf

    def meet(self, vote: int, epoch: int, resets: int) -> Met:
        """Agree on the next job with the ranks that live; a replacement's vote does not count.

        :param epoch: the epoch of the last job.
        :raises HvdliteError: a rank did not connect in time; or this rank is in the smaller part of
            a split network; or this rank is a replacement, and no other rank is left.
        """
        try:
            while True:
                leader = min(self._living() & set(self._old), default=None)
                if leader is None:
                    raise HvdliteError("the other ranks have ended")
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
        finally:
            # Drop connections that came too late, or to a rank that does not lead; ranks retry.
            self._port.send_away()

    def _living(self) -> Set[int]:
        self._silent |= self._lost() - self._asked
        return set(self._addresses) - self._silent - self._dead

    def _check_time(self, awaited: Set[int]) -> None:
        if time.monotonic() > self._ends:
            self._leave(awaited)
            agent_protocol.report_given_up(sorted(awaited))
            hosts = ", ".join(self._addresses[each][0] for each in sorted(awaited))
            raise HvdliteError(
                f"after a death this rank has waited {self._patience:g} s for the ranks at {hosts} "
                "to rejoin: one of them still computes, or is stopped. To wait longer, set "
                f"{PATIENCE}"
            )

    def _leave(self, numbers: Collection[int]) -> None:
        for number in numbers:
            self._lives.leave(number)

    # ---- the leader ----

    def _lead(self, vote: int, epoch: int, resets: int) -> Met:
        peers = self._receive()
        own = (vote, epoch, self._addresses[self._own], self._cut_off())
        messages, connections = {self._own: own}, {}
        for number, connection in peers.items():
            try:
                patience = self._patience if number in self._old else REPLACEMENT_SECONDS
                connection.settimeout(patience)
                bound(connection, self._limit)
                messages[number], connections[number] = tuple(receive(connection)), connection
            except OSError:  # after connecting, the rank has died or was stopped
                connection.close()
        for number in _apart({number: set(each[3]) for number, each in messages.items()}):
            _send_all({number: connections[number]}, {"error": _APART})
            connections.pop(number).close()
            del messages[number]
        members = sorted(messages)
        try:
            self._check_left(set(self._old) - set(members))
            self._check_majority(members)
        except HvdliteError as error:
            _send_all(connections, {"error": str(error)})
            raise
        votes = [messages[number][0] for number in self._old if number in messages]
        verdict = functools.reduce(operator.and_, votes) if len(votes) == len(self._old) else 0
        addresses = [messages[number][2] for number in members]
        epoch = max(each[1] for each in messages.values()) + 1
        agreed = (verdict, epoch, members, addresses, resets)
        _send_all(connections, {"value": agreed})
        self._leave(set(self._old) - set(members))
        return _make_met(
            agreed, {members.index(number): each for number, each in connections.items()}
        )

    def _receive(self) -> Dict[int, socket.socket]:
        awaited = self._living() - {self._own}
        expected = {(READY if number in self._old else NEW, number) for number in awaited}
        alone = math.inf  # since this time only replacements have been missing
        doubted, begun = self._doubted(self._own), time.monotonic()
        while True:
            if doubted and time.monotonic() > begun + DOUBT_SECONDS:
                self._doubt(doubted)
                if any(self._state(number) == ANSWERS for number in doubted):
                    self._port.send_away()  # so that these ranks connect to the lower rank
                    raise _Follows
            connected = {peer for peer in self._port.present() if peer[0] != LIFE}
            for purpose, number in expected - connected:
                if purpose == READY and (not self._is_alive(number) or self._proof_in(number) < 0):
                    expected.discard((purpose, number))
            missing = expected - connected
            if not missing:
                return self._take(connected)
            ranks = {number for purpose, number in missing if purpose == READY}
            alone = math.inf if ranks else min(alone, time.monotonic())
            if ranks:
                self._check_time(ranks)
            elif time.monotonic() > alone + REPLACEMENT_SECONDS:
                return self._take(connected)
            self._port.wait_for_one(LOOK_SECONDS)

    def _take(self, peers: Set[Peer]) -> Dict[int, socket.socket]:
        members: Dict[int, socket.socket] = {}
        strange: Dict[int, socket.socket] = {}
        for purpose, number in peers:
            of_the_job = purpose == NEW or number in self._old
            with contextlib.suppress(KeyError):  # the rank has just disconnected
                taken = self._port.take((purpose, number))
                (members if of_the_job else strange)[number] = taken
        _send_all(strange, {"error": "the other ranks count this rank as lost, and train on"})
        for connection in strange.values():
            connection.close()
        return members

    def _check_left(self, missing: Set[int]) -> None:
        """Raise if the missing ranks have continued, or ended, without this rank."""
        for number in missing:
            self._lives.state(number, self._limit)
        if self._lives.left_by:
            raise HvdliteError(_LEFT)

    def _check_majority(self, members: List[int]) -> None:
        """Raise if the network is split, and this rank is not on the side that may train on."""
        reached = set(members) & set(self._old)
        silent = (self._silent - reached) & set(self._old)
        is_half = len(reached) == len(silent)
        if len(reached) < len(silent) or (is_half and min(silent) < min(reached)):
            raise HvdliteError(
                f"the network is split: {len(reached)} ranks are on this side, and {len(silent)} "
                "ranks do not answer. Only the larger side trains on (of two equal sides, the side "
                "with the lowest rank), so this rank ends"
            )

    # ---- the others ----

    def _follow(self, leader: int, vote: int, epoch: int) -> Optional[Met]:
        """Vote at the leader; return None if the leader is dead, refuses, or does not lead."""
        question = self._connect(leader)
        if question is None:
            return None
        doubted = self._doubted(leader)
        patience = DOUBT_SECONDS if doubted else self._ends - time.monotonic()
        waits = self._waits(question, leader, min(patience, self._proof_in(leader)))
        purpose = READY if self._own in self._old else NEW
        try:
            introduce(waits, Hello(purpose, self._own, 0, 0), self._key)
            self._unproved.pop(leader, None)
            waits.set_patience(patience)
            send(waits, [vote, epoch, self._port.address, self._cut_off()])
            answer = receive(waits)
        except (OSError, Stranger):
            question.close()
            self._give_up(leader)
            self._doubt(doubted)
            return None
        if "error" in answer:
            question.close()
            raise HvdliteError(answer["error"])
        question.settimeout(None)
        met = _make_met(answer["value"], {0: question})
        self._leave(set(self._old) - set(met.members))
        return met

    def _connect(self, leader: int) -> Optional[socket.socket]:
        """Return a connection to the leader's port, or None if the leader is dead or silent."""
        while self._is_alive(leader):
            ipv6 = ":" in self._addresses[leader][0]
            question = socket.socket(socket.AF_INET6 if ipv6 else socket.AF_INET)
            try:
                bound(question, self._limit)
                address = tuple(self._addresses[leader])
                self._waits(question, leader, CONNECT_SECONDS).connect(address)
                return question
            # The leader closes its port only when it ends, so the leader is dead.
            except ConnectionRefusedError:
                self._dead.add(leader)
            except OSError:  # strangers may have filled the port's queue
                time.sleep(PAUSE_SECONDS)
            question.close()
            self._give_up(leader)
            self._check_time({leader})
        return None

    def _waits(self, question: socket.socket, leader: int, seconds: float) -> Patient:
        def poll() -> None:
            alive = self._is_alive(leader)
            if leader in self._lives.left_by:
                raise HvdliteError(_LEFT)
            if not alive:
                raise ConnectionResetError("the leader's process has ended")

        return Patient(question, poll, seconds)

    def _give_up(self, leader: int) -> None:
        if self._proof_in(leader) < 0:
            self._silent.add(leader)

    def _proof_in(self, number: int) -> float:
        """Return in how many seconds a rank must prove its identity; inf if it has done so."""
        if number in self._lives.numbers():
            return math.inf
        now = time.monotonic()
        return self._unproved.setdefault(number, now) + max(self._limit, REPLACEMENT_SECONDS) - now

    # ---- who lives ----

    def _cut_off(self) -> List[int]:
        """Return the ranks that this rank can't reach; other ranks may be able to reach them."""
        return sorted(self._lost() | self._unreached)

    def _doubted(self, leader: int) -> Set[int]:
        """Return ranks below ``leader`` that HostWatch reports lost, perhaps by mistake."""
        return {n for n in self._lost() - self._asked if n in self._old and n < leader}

    def _doubt(self, doubted: Set[int]) -> None:
        """From now on contact these ranks, even if HostWatch reports them lost."""
        self._silent -= doubted - self._asked
        self._asked |= doubted

    def _state(self, number: int) -> str:
        state = self._lives.state(number, self._limit)
        if state == DEAD:
            self._dead.add(number)
        if state == SILENT:
            self._silent.add(number)
        return state

    def _is_alive(self, number: int) -> bool:
        if number in self._living():
            self._state(number)
        return number in self._living()


class _Follows(Exception):
    """This rank does not lead, because a lower rank lives, which HostWatch reported lost."""


def _apart(cut_off: Dict[int, Set[int]]) -> List[int]:
    """Return the ranks that must leave because they and a lower rank can't reach each other.

    If rank A can't reach B, but B reaches A, then the HostWatch of A has erred, and both may stay.
    """
    stay: List[int] = []
    for number in sorted(cut_off):
        if not any(number in cut_off[other] and other in cut_off[number] for other in stay):
            stay.append(number)
    return sorted(set(cut_off) - set(stay))


def _make_met(agreed: Sequence[Any], connections: Dict[int, socket.socket]) -> Met:
    verdict, epoch, members, addresses, resets = agreed
    by_number = {number: (at[0], at[1]) for number, at in zip(members, addresses)}
    return Met(verdict, epoch, members, by_number, resets, connections)


def _send_all(connections: Dict[int, socket.socket], value: Dict[str, Any]) -> None:
    for connection in connections.values():
        with contextlib.suppress(OSError):
            send(connection, value)
