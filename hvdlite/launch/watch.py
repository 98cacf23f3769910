"""Runs a backend's command and watches over the job: one loop, one thread.

Every rank's agent connects and introduces itself; when all are there and alike, they start
together. The first failure, a signal or Ctrl-C ends the whole job: the others have a moment for
their last words, then every agent is told to stop, then the backend is ended.
"""

import json
import os
import selectors
import signal
import socket
import sys
import time
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

from hvdlite.launch import channel, environment, failure, network, probe, ranks
from hvdlite.launch.backend_process import BackendProcess
from hvdlite.launch.channel import Channel, ChannelClosed
from hvdlite.launch.job import Job, Plan
from hvdlite.launch.output import Output

LAST_WORDS = 1.2  # seconds from the first failure until all are told to stop
BACKEND_EXIT = 1.5  # for the backend to end after its processes
KILL = 2.0  # from SIGTERM to SIGKILL: mpirun needs most of it if it is still starting its daemons
SERVERS_EXIT = 5.0  # for servers to end by themselves after the last worker
TICK = 0.1
REFUSED = 2  # exit code: not one rank's program has run


class Interrupted(BaseException):
    """A signal asks for the end of the job."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


class Outcome(NamedTuple):
    """How the job ended."""

    code: int
    report: List[str]  # what to tell the user about a failure
    results: List[Optional[bytes]]  # of hvdlite.run, by rank
    signal: Optional[int]  # that ended it


class Watch:
    """One run of a backend's command. ``task`` is what hvdlite.run gives to every rank."""

    def __init__(self, job: Job, plan: Plan, output: Output, task: Optional[bytes] = None):
        self._job, self._plan, self._output, self._task = job, plan, output, task
        self._token = channel.new_token()
        self._selector = selectors.DefaultSelector()
        self._agenda: List[Tuple[float, Callable[[], None]]] = []
        self._ranks: Dict[int, ranks.Rank] = {}
        self._links: Dict[Channel, Optional[ranks.Rank]] = {}
        self._start_time: Optional[float] = None
        self._ending = False
        self._signal: Optional[int] = None
        self._refusal: Optional[str] = None  # why the job may not begin

    def run(self) -> Outcome:
        """Run to the end; nothing of the job is left when this returns."""
        listener = self._listen()
        self._backend = BackendProcess(self._plan, {channel.VARIABLE: self._where(listener)})
        try:
            for pipe in self._backend.pipes:
                self._selector.register(pipe, selectors.EVENT_READ, self._read_backend)
            self._at(self._job.start_timeout, self._give_up_waiting)
            while not (self._backend.over() and not self._links):
                self._turn_or_interrupt()
            return self._outcome()
        finally:
            self._backend.close()
            for link in self._links:
                link.close()
            listener.close()
            self._selector.close()
            self._output.close()

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
        if not self._ending:
            _print(self._backend.take_lines())
        if self._backend.over():
            self._backend_is_gone()

    def _at(self, seconds: float, action: Callable[[], None]) -> None:
        self._agenda.append((time.monotonic() + seconds, action))

    def _read_backend(self, pipe) -> None:
        if not self._backend.read(pipe):
            self._selector.unregister(pipe)

    # -------------------------------------------------------------------------------- agents
    def _listen(self) -> socket.socket:
        listener = socket.create_server(
            (network.listening_address(self._plan.remote), 0), backlog=self._job.processes
        )
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        return listener

    def _where(self, listener: socket.socket) -> str:
        addresses = network.offered_addresses(self._plan.remote, self._job.interfaces)
        return channel.join_address(self._token, addresses, listener.getsockname()[1])

    def _accept(self, listener: socket.socket) -> None:
        link = Channel(listener.accept()[0])
        self._links[link] = None
        self._selector.register(link.sock, selectors.EVENT_READ, lambda _: self._hear(link))

    def _hear(self, link: Channel) -> None:
        try:
            for kind, data in link.receive():
                rank = self._links.get(link)
                if rank:
                    self._told(rank, kind, data)
                elif link in self._links:
                    self._introduced(link, kind, data)
        except ChannelClosed:
            self._lost(link)

    def _introduced(self, link: Channel, kind: int, data: bytes) -> None:
        hello = json.loads(data) if kind == channel.HELLO else {}
        if hello.pop("token", None) != self._token:
            raise ChannelClosed
        link.trusted = True
        if self._ending:
            return link.send(channel.STOP)
        number = hello.pop("rank")
        number = len(self._ranks) if number < 0 else number  # a backend without ranks
        self._links[link] = self._ranks[number] = ranks.Rank(number, link, **hello)
        if len(self._ranks) == self._job.processes:
            self._start()

    def _told(self, rank: ranks.Rank, kind: int, data: bytes) -> None:
        if kind == channel.OUTPUT:
            self._output.write(rank.number, rank.label, data[0], data[1:])
        elif kind == channel.DATA:
            rank.result = data
        elif kind == channel.EXIT:
            self._ended(rank, **json.loads(data))
        elif kind == channel.CLEAN:
            rank.clean = True
            self._dismiss_if_all_are_clean()

    def _lost(self, link: Channel) -> None:
        if link not in self._links:  # noticed already, when something was sent
            return
        self._selector.unregister(link.sock)
        link.close()
        rank = self._links.pop(link)
        if not rank or rank.ending:
            return
        if self._start_time is None:
            del self._ranks[rank.number]
        else:  # it had no time to say more
            rank.clean = True
            self._ended(rank, code=-signal.SIGKILL, ended=self._ending)
            self._dismiss_if_all_are_clean()

    def _send(self, link: Channel, kind: int, data: bytes = b"") -> None:
        try:
            link.send(kind, data)
        except ChannelClosed:
            self._lost(link)

    def _tell_all(self, kind: int) -> None:
        for link in list(self._links):
            self._send(link, kind)

    def _drop_all(self) -> None:
        """Wait no longer for hosts that do not answer any more."""
        for link in list(self._links):
            self._lost(link)

    # ----------------------------------------------------------------------- the job's phases
    def _start(self) -> None:
        """All are there: let them begin, unless a host is not like the others."""
        self._refusal = ranks.difference(self._in_order(), probe.versions())
        if self._refusal:
            return self._end(last_words=0)
        if self._job.mode == "ps":
            ranks.give_roles(self._in_order(), self._job.servers)
        self._start_time = time.monotonic()
        common = {**environment.forwarded(os.environ), **environment.added(self._job)}
        hosts = [rank.host for rank in self._ranks.values()]
        for rank in self._in_order():
            own = ranks.environment_of(rank, self._in_order(), self._job)
            if self._task:
                self._send(rank.link, channel.DATA, self._task)
            cwd = self._job.sync_dir or os.getcwd()
            order = {"env": {**common, **own}, "cwd": cwd, "local_size": hosts.count(rank.host)}
            self._send(rank.link, channel.START, json.dumps(order).encode())

    def _ended(self, rank: ranks.Rank, code: int, ended: bool) -> None:
        self._output.end(rank.number, rank.label)
        after = time.monotonic() - self._start_time
        rank.ending = failure.Ending(rank.number, rank.label, rank.host, code, ended, after)
        if rank.ending.failed:
            self._end(LAST_WORDS)
        elif not ranks.still_needed(self._in_order()) and not self._ending:
            self._at(SERVERS_EXIT, lambda: self._end(last_words=0))

    def _dismiss_if_all_are_clean(self) -> None:
        if all(rank.clean for rank in self._ranks.values()):
            self._tell_all(channel.BYE)

    def _give_up_waiting(self) -> None:
        if self._start_time is None and not self._ending:
            self._refusal = (
                f"only {len(self._ranks)} of {self._job.processes} processes have started within "
                f"{self._job.start_timeout:g} s: run hvdliterun --check, or raise --start-timeout"
            )
            self._end(last_words=0)

    def _end(self, last_words: float) -> None:
        if self._ending and last_words:
            return
        self._ending = True
        self._at(last_words, lambda: self._tell_all(channel.STOP))
        patience = last_words + (BACKEND_EXIT if self._ranks else 0)
        self._at(patience, lambda: self._backend.signal(signal.SIGTERM))
        self._at(patience + KILL, lambda: self._backend.signal(signal.SIGKILL))
        self._at(patience + KILL + TICK, self._drop_all)

    def _backend_is_gone(self) -> None:
        """What is still connected then has lost its backend."""
        if self._links and not self._ending:
            self._end(last_words=0)

    # ------------------------------------------------------------------------------- outcome
    def _in_order(self) -> List[ranks.Rank]:
        return [self._ranks[number] for number in sorted(self._ranks)]

    def _outcome(self) -> Outcome:
        members = self._in_order()
        results = [rank.result for rank in members]
        code, report = self._verdict([r.ending for r in members if r.ending])
        return Outcome(code, report, results, self._signal)

    def _verdict(self, endings: List[failure.Ending]) -> Tuple[int, List[str]]:
        backend_lines = self._backend.take_lines(hold_back=0)
        if self._signal is not None:
            return 128 + self._signal, []
        if self._refusal:
            return REFUSED, [f"hvdliterun: {self._refusal}"]
        if self._start_time and not ranks.still_needed(self._in_order()):
            first = self._first_failure(endings)
            if not first:
                _print(backend_lines)
                return 0, []
            code = failure.exit_code(first)
            lines = self._output.last_lines(first.rank)
            return code, failure.report(first, code, lines, len(endings) - 1)
        code = self._backend.exit_code() or 1
        name = os.path.basename(self._plan.argv[0])
        return code, [*backend_lines, f"hvdliterun: {name} failed with exit code {code}"]

    def _first_failure(self, endings: List[failure.Ending]) -> Optional[failure.Ending]:
        def since_start(moments: Dict[int, float]) -> Dict[int, float]:
            return {rank: moment - self._start_time for rank, moment in moments.items()}

        signs = since_start(self._output.troubled), since_start(self._output.bereft)
        return failure.culprit(endings, *signs)


def _print(lines: List[str]) -> None:
    for line in lines:
        print(line, file=sys.stderr, flush=True)
