"""Starts replacements for the dead ranks of an elastic job.

The launcher starts an agent on a host with room: a host whose ranks have died, a host without
ranks, or a host that has come back. The launcher retries a host that ssh does not reach, after the
other hosts. The replacement gets the other ranks' addresses. When the replacement listens on a
port, the launcher tells the port to the other ranks, and they let the replacement join.
"""

import collections
import json
import time
from typing import Callable, Counter, Dict, List, NamedTuple, Optional, Set

from hvdlite.launch import channel, starter
from hvdlite.launch.job import Job, LaunchError
from hvdlite.launch.output import tell
from hvdlite.launch.processes import BackendProcess
from hvdlite.launch.ranks import Rank, is_present, placement

ATTEMPTS = 3  # after this many replacements in a row that died before joining, start no more
# seconds before an unreachable host is tried again: the first wait, the longest wait
RETRY_SECONDS, MOST_RETRY_SECONDS = 2.0, 16.0
# seconds of silence after which a host counts as lost, if the ranks count a rank on it as dead. The
# host may miss one probe, because a busy host has answered one late.
GIVEN_UP_SECONDS = 2 * channel.PROBE + 1.0
_PORT, _GIVEN_UP = {"address": str, "port": int}, {"ranks": list}
HERE = "localhost"


class _Call(NamedTuple):
    number: int  # the number of the rank that was started
    host: str  # the name that the user gave the host
    process: BackendProcess
    until: float  # when to give up the start, because ssh may wait forever for a lost host
    lines: List[str]  # lines that ``process`` (ssh) has printed


class Replacements:
    """Starts replacements, and tells the other ranks about them.

    :param where: the variables by which an agent finds the launcher.
    :param ranks: all ranks that have ever connected, by number.
    :param send: sends a frame to an agent.
    :param lose: called with the connection to a rank on a lost host, and the seconds of silence.
    """

    def __init__(
        self, job: Job, where: Dict[str, str], ranks: Dict[int, Rank],
        send: Callable[[channel.Channel, int, bytes], None],
        lose: Callable[[channel.Channel, float], None],
    ):  # fmt: skip
        self._job, self._where, self._ranks = job, where, ranks
        self._send, self._lose = send, lose
        self._calls: List[_Call] = []
        # the host of each rank that was ever started, by the rank's number
        self._hosts: Dict[int, str] = {}
        # when to try each lost or unreachable host again
        self._retry_at: Dict[str, float] = {}
        self._pauses: Dict[str, float] = {}  # pause before the host is tried again
        self._warned: Set[str] = set()
        self._failures = 0
        first = placement(job) if job.hosts else [(HERE, job.ranks)]
        self._hosts.update(enumerate(host for host, count in first for _ in range(count)))

    def note(self, rank: Rank, kind: int, data: bytes) -> None:
        """Record a rank's address, or for which ranks it no longer waits (GIVEN_UP).

        If the rank is a replacement, send its address to the other ranks.
        """
        if kind == channel.GIVEN_UP:
            for number in channel.fields(data, _GIVEN_UP)["ranks"]:
                if number in self._ranks:
                    self._ranks[number].given_up = True
            return
        rank.open_port = channel.fields(data, _PORT)
        news = json.dumps({"number": rank.number, **rank.open_port}).encode()
        for other in [] if rank.takes_part else list(filter(is_present, self._ranks.values())):
            self._send(other.link, channel.COMES, news)

    def poll(self) -> None:
        """Start missing ranks; each iteration of the launcher's loop calls this."""
        if not self._job.elastic or self._job.launcher not in ("local", "ssh"):
            return
        for call in list(self._calls):
            self._look_at(call, self._ranks.get(call.number))
        for rank in [r for r in self._ranks.values() if r.given_up and not r.ending]:
            if rank.link.silence() > GIVEN_UP_SECONDS:
                self._lose(rank.link, rank.link.silence())
        training = [rank for rank in self._ranks.values() if rank.takes_part]
        present = [rank for rank in training if is_present(rank)]
        if self._failures < ATTEMPTS and _may_grow(training, present):
            for rank in training:
                if rank.ending and rank.ending.silence:
                    self._retry_at.setdefault(self._hosts[rank.number], 0)
            self._fill([*self._coming(), *(rank.number for rank in present)])

    def _coming(self) -> Set[int]:
        """Return the replacements that were started and have not joined yet."""
        ranks = self._ranks
        waiting = {n for n, rank in ranks.items() if not (rank.takes_part or rank.ending)}
        return waiting | {call.number for call in self._calls if call.number not in ranks}

    def _fill(self, numbers: List[int]) -> None:
        """Start replacements until the job is full, or no host may be tried now."""
        for _ in range(self._job.most - len(numbers)):
            host = self._place(numbers)
            number = None if host is None else self._start(host)
            if number is None:
                return
            numbers.append(number)

    def are_running(self) -> bool:
        return any(call.process.running() for call in self._calls)

    def close(self) -> None:
        for call in self._calls:
            call.process.close()

    def _look_at(self, call: _Call, rank: Optional[Rank]) -> None:
        call.process.read_all()
        call.lines.extend(call.process.take_lines(hold_back=0))
        if rank and rank.takes_part:
            self._failures = 0
            self._pauses.pop(call.host, None)
        late = rank is None and time.monotonic() > call.until
        if call.process.over() or late or (rank and rank.ending and rank.ending.silence):
            self._calls.remove(call)
            call.process.close()
            if rank is None:
                self._put_off(call.host, call.lines)
            elif not rank.takes_part:
                self._failures += 1

    def _put_off(self, host: str, lines: List[str]) -> None:
        if host not in self._warned:
            self._warned.add(host)
            why = f": {lines[-1]}" if lines else ""
            tell(f"hvdliterun: no new rank on {host} yet{why} (tried again, reported once)")
        self._pauses[host] = min(2 * self._pauses.get(host, RETRY_SECONDS / 2), MOST_RETRY_SECONDS)
        self._retry_at[host] = time.monotonic() + self._pauses[host]

    def _place(self, numbers: List[int]) -> Optional[str]:
        """Return a host with room, preferably one that answers; None: no host may be tried now."""
        taken: Counter[str] = collections.Counter(self._hosts[number] for number in numbers)
        rooms = _rooms(self._job, self._job.most)
        free = {host: room - taken[host] for host, room in rooms.items() if room > taken[host]}
        now = time.monotonic()
        ready = [host for host in free if self._retry_at.get(host, 0) <= now]
        return min(ready, key=lambda host: (host in self._retry_at, -free[host]), default=None)

    def _start(self, host: str) -> Optional[int]:
        """Start an agent; return its number, or None if this machine can't start a process now."""
        number = max(self._hosts, default=-1) + 1
        command = starter.command_on(self._job, [(host, 1)], number)
        until = time.monotonic() + self._job.start_timeout
        try:
            process = BackendProcess(command, self._where)
        except LaunchError as error:
            self._put_off(host, [str(error)])
            return None
        self._hosts[number] = host
        self._calls.append(_Call(number, host, process, until, []))
        return number


def _may_grow(training: List[Rank], present: List[Rank]) -> bool:
    """Return True if a replacement could join, and the job is not done."""
    ended = any(rank.ending and not rank.ending.failed for rank in training)
    return not ended and any(rank.open_port and not rank.given_up for rank in present)


def _rooms(job: Job, processes: int) -> Dict[str, int]:
    """Return how many ranks each host may have."""
    if not job.hosts:
        return {HERE: processes}
    rooms = {host.name: host.slots or 0 for host in job.hosts}
    for host, count in placement(job):
        rooms[host] = max(rooms[host], count)
    lacks = processes - sum(rooms.values())
    for host in list(rooms)[: max(lacks, 0)]:
        rooms[host] += -(-lacks // len(rooms))
    return rooms
