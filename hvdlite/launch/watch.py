"""Runs a backend's command and watches the job, in one loop and one thread.

The agent of each rank connects and sends a HELLO. When all are connected and their hosts are alike,
they start together. The first failure, a signal or Ctrl-C ends the whole job: the other ranks get a
moment to print, then every agent is told to stop, then the backend is ended.
"""

import json
import selectors
import signal
import time
from typing import Callable, Dict, List, Optional, Tuple

from hvdlite.launch import channel, check, door, failure, flights, probe, ranks, shared_memory
from hvdlite.launch.channel import BadFrame, Channel, ChannelClosed
from hvdlite.launch.door import Door, Hello
from hvdlite.launch.job import Interrupted, Job, Outcome, Plan
from hvdlite.launch.newcomers import Newcomers
from hvdlite.launch.output import Output, tell
from hvdlite.launch.processes import BackendProcess

LAST_WORDS = 1.2  # seconds from the first failure until all are told to stop
BACKEND_EXIT = 1.5  # for the backend to end after its processes
KILL = 2.0  # from SIGTERM to SIGKILL: mpirun needs most of it if it is still starting its daemons
LEFTOVERS_EXIT = 5.0  # for those that nobody needs any more to end by themselves
SUMMARY_EXIT = 30.0  # the same, where agents read what --summary tells, and the machine is busy
TICK = 0.1
_EXIT = {"code": int, "ended": bool, "goodbye": bool, "signal": int}
REFUSED = 2  # exit code: no rank's program has run


class Watch:
    """One run of a backend's command; ``task`` is hvdlite.run's pickled call for every rank."""

    def __init__(self, job: Job, plan: Plan, output: Output, task: Optional[bytes] = None):
        self._job, self._plan, self._output, self._task = job, plan, output, task
        self._number = shared_memory.new_job()
        self.flights = flights.Flights(self._number)
        self._signs = failure.Signs()
        self._selector = selectors.DefaultSelector()
        self._agenda: List[Tuple[float, Callable[[], None]]] = []
        self._ranks: Dict[int, ranks.Rank] = {}
        self._links: Dict[Channel, ranks.Rank] = {}
        self._start_time: Optional[float] = None
        self._ending = False
        self._signal: Optional[int] = None
        self._refusal: Optional[str] = None  # why the job may not begin

    def run(self) -> Outcome:
        """Run the job to its end; afterwards nothing of it is left on this host."""
        self._door = self._open_door()
        where = {channel.VARIABLE: str(self._door.invitation())}
        self._backend = BackendProcess(self._plan, where)
        self._newcomers = Newcomers(self._job, where, self._ranks, self._send, self._lost)
        try:
            for pipe in self._backend.pipes:
                self._selector.register(pipe, selectors.EVENT_READ, self._read_backend)
            self._at(self._job.start_timeout, self._give_up_waiting)
            self._at(channel.PROBE, self._notice_silence)
            while not (self._backend.over() and not self._links):
                self._turn_or_interrupt()
            return self._outcome()
        finally:
            self._backend.close()
            self._newcomers.close()
            for link in self._links:
                link.close()
            self._door.close()
            self._selector.close()
            self._output.close()
            shared_memory.of_job(self._number).remove(all_of_it=True)

    # ---------------------------------------------------------------------------------- loop
    def _turn_or_interrupt(self) -> None:
        try:
            self._turn()
        except (Interrupted, KeyboardInterrupt, BrokenPipeError) as interrupt:
            if self._signal is not None:  # a second Ctrl-C: at once
                self._backend.signal(signal.SIGKILL)
            default = signal.SIGPIPE if isinstance(interrupt, BrokenPipeError) else signal.SIGINT
            self._signal = self._signal or getattr(interrupt, "number", default)
            self._end(last_words=0)

    def _turn(self) -> None:
        now = time.monotonic()
        due = [action for when, action in self._agenda if when <= now]
        self._agenda = [item for item in self._agenda if item[0] > now]
        for action in due:
            action()
        for key, _ in self._selector.select(TICK):
            key.data(key.fileobj)
        self._door.drop_the_silent()
        if not self._ending:
            tell(*self._backend.take_lines())
            self._newcomers.look()
        if self._backend.over():
            self._backend_is_gone()
        elif not self._backend.running():
            self._backend.end_heirs()

    def _at(self, seconds: float, action: Callable[[], None]) -> None:
        self._agenda.append((time.monotonic() + seconds, action))

    def _read_backend(self, pipe) -> None:
        if not self._backend.read(pipe):
            self._selector.unregister(pipe)

    # -------------------------------------------------------------------------------- agents
    def _open_door(self) -> Door:
        job, remote = self._job, self._plan.remote
        hosts = [host.name for host in job.hosts]
        addresses = door.listening_addresses(remote, job.interfaces, hosts)
        key = door.new_key() if remote else None
        return Door(self._selector, addresses, job.processes, key, self._welcome)

    def _welcome(self, link: Channel, hello: Hello) -> None:
        number = hello.pop("rank")
        number = len(self._ranks) if number < 0 else number  # a backend without ranks
        more = self._job.elastic and self._start_time is not None
        if number in self._ranks or (number >= self._job.processes and not more):
            raise BadFrame("a rank that is there already, or is none of the job's")
        rank = self._links[link] = self._ranks[number] = ranks.Rank(number, link, **hello)
        rank.takes_part = number < self._job.processes
        self._selector.register(link.sock, selectors.EVENT_READ, lambda _: self._receive(rank))
        if self._ending:
            self._send(link, channel.STOP)
        elif self._start_time is not None:
            self._start_rank(rank)
        elif len(self._ranks) == self._job.processes:
            self._start()

    def _receive(self, rank: ranks.Rank) -> None:
        try:
            for kind, data in rank.link.receive():
                self._told(rank, kind, data)
        except BadFrame as why:
            self._door.complain(rank.link, f"rank {rank.label} sent what it never sends: {why}")
            self._lost(rank.link)
        except ChannelClosed:
            self._lost(rank.link)

    def _told(self, rank: ranks.Rank, kind: int, data: bytes) -> None:
        if self._start_time is None:
            raise BadFrame(f"a frame of kind {kind} before the start")
        if kind == channel.OUTPUT:
            if data[:1] not in (b"\0", b"\1"):
                raise BadFrame("output of no stream")
            self._output.write(rank.number, rank.label, data[0], data[1:])
        elif kind == channel.DATA:
            rank.result = data
        elif kind == channel.EXIT and not rank.ending:
            self._ended(rank, **channel.fields(data, _EXIT))
        elif kind == channel.FLIGHT:
            self.flights.add(rank.number, data)
        elif kind == channel.TROUBLE and not self._ending:
            self._look(self._report_stall)
        elif kind == channel.SIGN:
            self._signs.add(rank.number, data, self._since_start(time.monotonic()))
        elif kind == channel.LET_IN:
            rank.takes_part = True
        elif kind in (channel.DOOR, channel.GONE):
            self._newcomers.note(rank, kind, data)
        elif kind == channel.CLEAN:
            rank.clean = True
            self._dismiss_if_all_are_clean()

    def _notice_silence(self) -> None:
        """Lose the hosts that answer nothing: without power or network nothing is closed."""
        self._at(channel.PROBE, self._notice_silence)
        if self._start_time is not None:
            now = self._since_start(time.monotonic())
            for rank, silence in ranks.silent(self._in_order(), self._job.host_timeout, now):
                self._lost(rank.link, silence)

    def _lost(self, link: Channel, silence: float = 0) -> None:
        if link not in self._links:  # noticed already, when something was sent
            return
        self._selector.unregister(link.sock)
        link.close()
        rank = self._links.pop(link)
        if rank.ending:
            return
        if self._start_time is None:
            del self._ranks[rank.number]
        else:  # the agent died before it reported
            rank.clean = True
            ended = self._ending and not silence
            self._ended(rank, -signal.SIGKILL, ended, silent=True, silence=silence)
            self._dismiss_if_all_are_clean()

    def _send(self, link: Channel, kind: int, data: bytes = b"") -> None:
        try:
            link.send(kind, data)
        except ChannelClosed:
            if not link.has_more():  # else its end comes after what is still to be read
                self._lost(link)

    def _tell_all(self, kind: int, data: bytes = b"") -> None:
        for link in list(self._links):
            # A silent host is not asked: the kernel would send that again ever more rarely.
            if kind != channel.LOOK or link.silence() < channel.LATE:
                self._send(link, kind, data)

    def _drop_all(self) -> None:
        """Stop waiting for hosts that no longer answer, not for a slow reader of their output."""
        for link in list(self._links):
            if self._signal is not None or not link.has_more():
                self._lost(link)
        if self._links:
            self._at(TICK, self._drop_all)

    # ----------------------------------------------------------------------- the job's phases
    def _start(self) -> None:
        """Start all ranks, unless a host has other versions."""
        ours = probe.versions()
        told = (ranks.version_difference(r.host, r.versions, ours) for r in self._in_order())
        self._refusal = next(filter(None, told), None)
        if self._refusal:
            return self._end(last_words=0)
        if self._job.mode == "ps":
            there = self._in_order()
            for rank, role in zip(there, ranks.assign(there, self._job)):
                rank.role = role
        self._start_time = time.monotonic()
        for rank in self._in_order():
            self._start_rank(rank)
        if self._job.metrics is not None:
            self._look_quietly()

    def _start_rank(self, rank: ranks.Rank) -> None:
        order = ranks.order(rank, self._in_order(), self._job)
        order["env"][shared_memory.VARIABLE] = self._number
        if self._task:
            self._send(rank.link, channel.DATA, self._task)
        self._send(rank.link, channel.START, json.dumps(order).encode())

    def _ended(
        self, rank: ranks.Rank, code: int, ended: bool, goodbye=True, silent=False, silence=0.0,
        signal: int = 0,
    ) -> None:  # fmt: skip
        self._output.end(rank.number, rank.label)
        after = self._since_start(time.monotonic())
        who = (rank.number, rank.label, rank.host)
        rank.ending = failure.Ending(*who, code, ended, after, goodbye, silent, silence, signal)
        needed = ranks.still_needed(self._in_order())
        if silence:
            self._tell_all(channel.LOST, rank.host.encode())
        if rank.ending.failed and not self._job.elastic:
            self._end(LAST_WORDS)
        elif rank.ending.failed and needed and not self._ending:
            tell(*failure.report_death(rank.ending))
        if not needed and not self._ending:
            patience = SUMMARY_EXIT if self._job.summary else LEFTOVERS_EXIT
            self._at(patience, self._end_leftovers)

    def _end_leftovers(self) -> None:
        """End servers, and newcomers whose job has ended."""
        if not ranks.still_needed(self._in_order()):
            self._end(last_words=0)

    def _look(self, then: Callable[[], None]) -> None:
        self._tell_all(channel.LOOK)
        self._at(flights.LOOK_SECONDS, then)

    def _look_quietly(self) -> None:
        if not self._ending:
            self._tell_all(channel.LOOK, channel.QUIETLY)
            self._at(flights.EVERY, self._look_quietly)

    def _report_stall(self) -> None:
        line = self.flights.report_stall()
        tell(*([line] if line else []))

    def _dismiss_if_all_are_clean(self) -> None:
        if all(rank.clean for rank in self._ranks.values()):
            self._tell_all(channel.BYE)

    def _give_up_waiting(self) -> None:
        if self._start_time is None and not self._ending:
            where, sign = self._door.invitation().addresses, self._backend.sign
            self._refusal = check.why_missing(self._job, list(self._ranks), where, sign)
            self._end(last_words=0)

    def _end(self, last_words: float) -> None:
        if self._ending and last_words:
            return
        self._ending = True
        if last_words:
            self._tell_all(channel.LOOK)
        self._at(last_words, lambda: self._tell_all(channel.STOP))
        patience = last_words + (BACKEND_EXIT if self._ranks else 0)
        self._at(patience, lambda: self._backend.signal(signal.SIGTERM))
        self._at(patience + KILL, lambda: self._backend.signal(signal.SIGKILL))
        self._at(patience + KILL + TICK, self._drop_all)

    def _backend_is_gone(self) -> None:
        """End the job: the agents that are still connected have lost their backend."""
        if self._links and not self._ending and not self._newcomers.are_running():
            self._end(last_words=0)

    # ------------------------------------------------------------------------------- outcome
    def _in_order(self) -> List[ranks.Rank]:
        return [self._ranks[number] for number in sorted(self._ranks)]

    def _outcome(self) -> Outcome:
        members = self._in_order()
        code, report = self._verdict([r.ending for r in members if r.ending and r.takes_part])
        if self._job.summary and not report:
            tell(*self.flights.summary().splitlines())
        line = self.flights.report("failure", report[0]) if report else None
        report += [line] if line else []
        lost = ranks.lost_hosts(members, self._job)
        results, refused = [r.result for r in members], bool(self._refusal)
        return Outcome(code, report, results, self._signal, lost, refused)

    def _verdict(self, endings: List[failure.Ending]) -> Tuple[int, List[str]]:
        backend_lines = self._backend.take_lines(hold_back=0)
        if self._signal is not None:
            return 128 + self._signal, []
        if self._refusal:
            return REFUSED, [f"hvdliterun: {line}" for line in self._refusal.splitlines()]
        if self._job.elastic and any(not (e.failed or e.ended) for e in endings):
            return 0, []
        first = failure.lost(endings) or self._first_failure(endings)
        if first:
            code = failure.exit_code(first)
            late, more = failure.who_stood_still(first, endings, self._signs)
            if late:
                lines = self._output.last_lines(late[0].rank)
                return code, failure.report_standstill(late, more, first, lines)
            lines = self._output.last_lines(first.rank)
            if not lines and first.code in failure.LOST_PEER:  # mpirun tells why MPI has ended it
                tell(*backend_lines)
            return code, failure.report(first, code, lines, len(endings) - 1)
        code = self._backend.exit_code()
        if ranks.have_finished(self._in_order()) and (code == 0 or self._ending):
            tell(*backend_lines)
            return 0, []
        why = failure.report_backend(self._plan.argv[0], code, self._start_time is not None)
        return code or 1, [*backend_lines, why]

    def _first_failure(self, endings: List[failure.Ending]) -> Optional[failure.Ending]:
        if self._job.elastic:
            return failure.last(endings)
        return failure.culprit(endings, self._signs) or failure.signalled(endings)

    def _since_start(self, moment: float) -> float:
        assert self._start_time is not None  # ranks end, and print, when they have begun
        return moment - self._start_time
