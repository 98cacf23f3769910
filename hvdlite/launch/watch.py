"""Watches a job from its start to its end, in one loop and one thread.

A job has three phases. Gathering: the agent of each rank connects and sends a HELLO. Running: when
all are connected and all hosts have the same versions, all programs start. Ending: after a failure,
the other ranks may print for LAST_WORDS seconds. Then, or immediately after a signal or Ctrl-C, the
launcher sends STOP to every agent, and then ends the backend.
"""

import enum
import itertools
import json
import os
import selectors
import signal
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from hvdlite.core import agent_protocol
from hvdlite.launch import (
    channel,
    check,
    environment,
    failure,
    flights,
    listener,
    ranks,
    shared_memory,
)
from hvdlite.launch.assignment import assign
from hvdlite.launch.channel import BadFrame, Channel
from hvdlite.launch.job import Command, Interrupted, Job, Outcome
from hvdlite.launch.links import Links
from hvdlite.launch.listener import Hello, Listener
from hvdlite.launch.output import Output, tell
from hvdlite.launch.processes import BackendProcess
from hvdlite.launch.replacements import Replacements
from hvdlite.launch.verdict import Evidence, report_death, verdict
from hvdlite.machine import probe

LAST_WORDS = 1.2  # seconds from the first failure until the launcher sends STOP to all agents
BACKEND_EXIT = 1.5  # seconds that the backend has to end by itself after STOP
# seconds from SIGTERM to SIGKILL: an mpirun that still starts its daemons needs most of this time
KILL = 2.0
LEFTOVERS_EXIT = 5.0  # seconds until the launcher ends processes that outlive the training ranks
# LEFTOVERS_EXIT with --summary: agents then read flight recorders, perhaps on a busy machine
SUMMARY_EXIT = 30.0
TICK = 0.1  # seconds by which a deadline may be noticed late; chosen
_EXIT = {"code": int, "ended": bool, "goodbye": bool, "signal": int}


class Phase(enum.Enum):
    """The phase of a job. A job that is refused ends without running."""

    GATHERING, RUNNING, ENDING = range(3)


class Watch:
    """One run of a backend's command; ``task`` is hvdlite.run's pickled call for every rank."""

    def __init__(self, job: Job, command: Command, output: Output, task: Optional[bytes] = None):
        self._job, self._command, self._output, self._task = job, command, output, task
        self._number = os.urandom(8).hex()  # the job's number, which no other job has
        self.flights = flights.Flights(self._number)
        self._signs = failure.Signs(environment.exit_timeout(job))
        self._selector = selectors.DefaultSelector()
        self._agenda: List[Tuple[float, Callable[[], None]]] = []
        self._ranks: Dict[int, ranks.Rank] = {}
        self._phase = Phase.GATHERING
        self._start_time: Optional[float] = None  # when the ranks' programs were started
        self._signal: Optional[int] = None
        self._refusal: Optional[str] = None  # why the job may not begin

    def run(self) -> Outcome:
        """Run the job to its end, and leave none of its processes and files on this host."""
        self._listener = self._listen()
        self._links = Links(self._selector, self._heard, self._note_loss, self._listener.complain)
        where = {channel.VARIABLE: str(self._listener.invitation())}
        self._backend = BackendProcess(self._command, where)
        self._replacements = Replacements(
            self._job, where, self._ranks, self._links.send, self._links.lose
        )
        try:
            for pipe in self._backend.pipes:
                self._selector.register(pipe, selectors.EVENT_READ, self._read_backend)
            self._schedule(self._job.start_timeout, self._give_up_waiting)
            self._schedule(channel.PROBE, self._notice_silence)
            while not (self._backend.over() and not self._links):
                self._serve_or_interrupt()
            return self._outcome()
        finally:
            self._backend.close()
            self._replacements.close()
            self._links.close()
            self._listener.close()
            self._selector.close()
            self._output.close()
            shared_memory.of_job(self._number).remove(all_of_it=True)

    # ---------------------------------------------------------------------------------- loop
    def _serve_or_interrupt(self) -> None:
        try:
            self._serve_once()
        except (Interrupted, KeyboardInterrupt, BrokenPipeError) as interrupt:
            if self._signal is not None:  # a second Ctrl-C ends the job immediately
                self._backend.signal(signal.SIGKILL)
            default = signal.SIGPIPE if isinstance(interrupt, BrokenPipeError) else signal.SIGINT
            self._signal = self._signal or getattr(interrupt, "number", default)
            self._end()

    def _serve_once(self) -> None:
        now = time.monotonic()
        due = [action for when, action in self._agenda if when <= now]
        self._agenda = [item for item in self._agenda if item[0] > now]
        for action in due:
            action()
        for key, _ in self._selector.select(TICK):
            key.data(key.fileobj)
        self._listener.drop_the_silent()
        if self._phase is not Phase.ENDING:
            tell(*self._backend.take_lines())
            self._replacements.poll()
        if self._backend.over():
            # end the job if agents are still connected, because they have lost their backend
            lost = self._links and not self._replacements.are_running()
            if lost and self._phase is not Phase.ENDING:
                self._end()
        elif not self._backend.running():
            self._backend.end_heirs()

    def _schedule(self, seconds: float, action: Callable[[], None]) -> None:
        self._agenda.append((time.monotonic() + seconds, action))

    def _read_backend(self, pipe) -> None:
        if not self._backend.read(pipe):
            self._selector.unregister(pipe)

    # ----------------------------------------------------------------------------- gathering
    def _listen(self) -> Listener:
        job, remote = self._job, self._command.remote
        hosts = [host.name for host in job.hosts]
        addresses = listener.listening_addresses(remote, job.interfaces, hosts)
        key = listener.new_key() if remote else None
        return Listener(self._selector, addresses, job.processes, key, self._welcome)

    def _welcome(self, link: Channel, hello: Hello) -> None:
        number = hello.pop("rank")
        # the backend does not number its processes, and lost agents leave gaps in the numbers
        if number < 0:
            number = next(n for n in itertools.count() if n not in self._ranks)
        more = self._job.elastic and self._start_time is not None
        if number in self._ranks or (number >= self._job.processes and not more):
            raise BadFrame(
                f"a HELLO of rank {number}, which is connected already or is not of this job"
            )
        rank = self._ranks[number] = ranks.Rank(number, link, **hello)
        rank.takes_part = number < self._job.processes
        self._links.add(rank)
        if self._phase is Phase.ENDING:
            self._links.send(link, channel.STOP)
        elif self._phase is Phase.RUNNING:
            self._start_rank(rank)
        elif len(self._ranks) == self._job.processes:
            self._start()

    def _give_up_waiting(self) -> None:
        if self._phase is Phase.GATHERING:
            where, sign = self._listener.invitation().addresses, self._backend.sign
            self._refusal = check.why_missing(self._job, list(self._ranks), where, sign)
            self._end()

    def _start(self) -> None:
        """Start all ranks, unless versions of software differ between hosts."""
        ours, members = probe.versions(), self._in_order()
        for rank in members:
            different = ranks.version_difference(rank.host, rank.versions, ours)
            if different:
                self._refusal = different
                return self._end()
        if self._job.mode == "ps":
            for rank, role in zip(members, ranks.roles_of(members, self._job)):
                rank.role = role
        self._phase, self._start_time = Phase.RUNNING, time.monotonic()
        for rank in members:
            self._start_rank(rank)
        if self._job.metrics is not None:
            self._look_quietly()

    def _start_rank(self, rank: ranks.Rank) -> None:
        assignment = assign(rank, self._in_order(), self._job)
        assignment["env"][agent_protocol.JOB] = self._number
        if self._task:
            self._links.send(rank.link, channel.DATA, self._task)
        self._links.send(rank.link, channel.START, json.dumps(assignment).encode())

    # ------------------------------------------------------------------------------- running
    def _heard(self, rank: ranks.Rank, kind: int, data: bytes) -> None:
        if self._start_time is None:
            raise BadFrame(f"a frame of kind {kind}, although the job has not started")
        if kind == channel.OUTPUT:
            if data[:1] not in (b"\0", b"\1"):
                raise BadFrame(f"output of stream {data[:1]!r}; expected stdout or stderr")
            self._output.write(rank.number, rank.label, data[0], data[1:])
        elif kind == channel.DATA:
            rank.result = data
        elif kind == channel.EXIT and not rank.ending:
            self._note_end(rank, **channel.fields(data, _EXIT))
        elif kind == channel.FLIGHT:
            self.flights.add(rank.number, data)
        elif kind == channel.TROUBLE and self._phase is Phase.RUNNING:
            self._links.send_all(channel.LOOK)
            self._schedule(flights.LOOK_SECONDS, self._report_stall)
        elif kind == channel.SIGN:
            self._signs.add(rank.number, data, self._since_start())
        elif kind == channel.LET_IN:
            rank.takes_part = True
        elif kind in (channel.PORT, channel.GIVEN_UP):
            self._replacements.note(rank, kind, data)
        elif kind == channel.CLEAN:
            self._note_clean(rank)

    def _notice_silence(self) -> None:
        """Give up silent hosts: a host without power or network closes no connection."""
        self._schedule(channel.PROBE, self._notice_silence)
        if self._start_time is not None:
            limit, now = self._job.host_timeout, self._since_start()
            for rank, silence in ranks.silent(self._in_order(), limit, now):
                self._links.lose(rank.link, silence)

    def _note_loss(self, rank: ranks.Rank, silence: float) -> None:
        """Record the end of a rank whose agent has ended, or is lost, without a report."""
        if rank.ending:
            return
        if self._start_time is None:
            del self._ranks[rank.number]
            return
        ended = self._phase is Phase.ENDING and not silence
        self._note_end(rank, silence, code=-signal.SIGKILL, ended=ended, silent=True)
        self._note_clean(rank)

    def _note_end(self, rank: ranks.Rank, silence: float = 0, **fields: Any) -> None:
        """Record how a rank has ended, and act on it; ``fields``: more fields for the Ending."""
        self._output.end(rank.number, rank.label)
        who, after = (rank.number, rank.label, rank.host), self._since_start()
        rank.ending = failure.Ending(*who, after=after, silence=silence, **fields)
        needed = ranks.still_needed(self._in_order())
        if silence:
            self._links.send_all(channel.LOST, rank.host.encode())
        if rank.ending.failed and not self._job.elastic:
            self._end(LAST_WORDS)
        elif rank.ending.failed and needed and self._phase is Phase.RUNNING:
            tell(*report_death(rank.ending))
        if not needed and self._phase is Phase.RUNNING:
            patience = SUMMARY_EXIT if self._job.summary else LEFTOVERS_EXIT
            self._schedule(patience, self._end_leftovers)

    def _look_quietly(self) -> None:
        if self._phase is Phase.RUNNING:
            self._links.send_all(channel.LOOK, channel.QUIETLY)
            self._schedule(flights.EVERY, self._look_quietly)

    def _report_stall(self) -> None:
        line = self.flights.report_stall()
        tell(*([line] if line else []))

    # -------------------------------------------------------------------------------- ending
    def _end(self, last_words: float = 0) -> None:
        """End the job: now, or in ``last_words`` seconds, in which the ranks may still report."""
        if self._phase is Phase.ENDING and last_words:
            return
        self._phase = Phase.ENDING
        if last_words:
            self._links.send_all(channel.LOOK)
        self._schedule(last_words, lambda: self._links.send_all(channel.STOP))
        patience = last_words + (BACKEND_EXIT if self._ranks else 0)
        self._schedule(patience, lambda: self._backend.signal(signal.SIGTERM))
        self._schedule(patience + KILL, lambda: self._backend.signal(signal.SIGKILL))
        self._schedule(patience + KILL + TICK, self._lose_all)

    def _end_leftovers(self) -> None:
        if not ranks.still_needed(self._in_order()):
            self._end()

    def _note_clean(self, rank: ranks.Rank) -> None:
        """Record that a rank's processes have ended. After the last rank, dismiss all agents."""
        rank.clean = True
        if all(each.clean for each in self._ranks.values()):
            self._links.send_all(channel.BYE)

    def _lose_all(self) -> None:
        """Close all connections without unread data; close the other ones when they are read."""
        self._links.lose_all(unread=self._signal is not None)
        if self._links:
            self._schedule(TICK, self._lose_all)

    def _outcome(self) -> Outcome:
        members = self._in_order()
        code, report, first = verdict(self._evidence(members))
        tell(*first)
        if self._job.summary and not report:
            tell(*self.flights.summary().splitlines())
        line = self.flights.report("failure", report[0]) if report else None
        report = [*report, line] if line else report
        lost = ranks.lost_hosts(members, self._job)
        results, refused = [r.result for r in members], bool(self._refusal)
        return Outcome(code, report, results, self._signal, lost, refused)

    def _evidence(self, members: List[ranks.Rank]) -> Evidence:
        return Evidence(
            signal=self._signal,
            refusal=self._refusal,
            elastic=self._job.elastic,
            endings=[r.ending for r in members if r.ending and r.takes_part],
            signs=self._signs,
            started=self._start_time is not None,
            ended=self._phase is Phase.ENDING,
            finished=ranks.have_finished(members),
            backend=self._command.argv[0],
            backend_code=self._backend.exit_code(),
            backend_lines=self._backend.take_lines(hold_back=0),
            last_lines=self._output.last_lines,
        )

    def _in_order(self) -> List[ranks.Rank]:
        return [self._ranks[number] for number in sorted(self._ranks)]

    def _since_start(self) -> float:
        # nothing calls this before the ranks start: until then _heard refuses all frames
        assert self._start_time is not None
        return time.monotonic() - self._start_time
