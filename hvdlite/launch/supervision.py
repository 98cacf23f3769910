"""Runs the user's program for one rank, as the launcher commands."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import socket
import subprocess
import time

from hvdlite.core import agent_protocol
from hvdlite.launch import channel, environment, flights, shared_memory
from hvdlite.machine import nodes

TERM_SECONDS = 0.7  # seconds from SIGTERM to SIGKILL; mpirun itself gives its processes one second
LEAVE_SECONDS = 1.3  # seconds from SIGTERM until the agent stops waiting for the other ranks
# seconds to read output after the program's end, while its children hold the pipe open
DRAIN_SECONDS = 0.3
_libc = ctypes.CDLL(None)


class Agent:
    """Runs the program; one loop serves its pipes, the launcher's frames and signals."""

    def __init__(self, link: channel.Channel):
        self._link: channel.Channel | None = link
        self._child: subprocess.Popen = None  # type: ignore[assignment]  # until it runs
        self._selector = selectors.DefaultSelector()
        self._ended = False  # True: the launcher or the backend ended the program
        self._signal = 0  # the signal that ended the program; 0 if the launcher sent it
        self._kill_at = self._leave_by = float("inf")
        self._dismissed = False  # True: the launcher needs nothing more from this agent
        # ids of processes that have joined the job and not left it
        self._joined: set[bytes] = set()
        # by this pipe the program reports, for example, a failure (core/agent_protocol.py)
        self._goodbyes, self._goodbye_end = os.pipe()
        # by this pipe the program learns of lost hosts and replacements (exit/orphan.py)
        self._news, self._news_end = os.pipe()
        os.set_blocking(self._news_end, False)
        self._memory = shared_memory.NOTHING
        self._flight = flights.Held()
        self._elastic = False  # True: the other ranks go on if the program dies
        self._listen_to_signals()
        self._selector.register(self._goodbyes, selectors.EVENT_READ, self._note_goodbyes)
        self._selector.register(link.sock, selectors.EVENT_READ, self._receive)

    def run(self, command: list[str], assignment: dict) -> int:
        """Run the program to its end; return its exit code, or minus the signal that ended it."""
        try:
            self._start(command, assignment)
        except OSError as error:
            host = socket.gethostname()
            self._report(f"{host} cannot start '{error.filename}': {error.strerror}")
            return 127 if isinstance(error, FileNotFoundError) else 126
        while self._child.poll() is None:
            self._serve_once(self._kill_at - time.monotonic())
            if time.monotonic() >= self._kill_at:
                self._signal_all(signal.SIGKILL)
                self._kill_at = float("inf")
        self._serve_once(0)  # reads the program's last messages
        self._drain()
        self._signal_all(signal.SIGKILL)  # ends the background children of the program
        return self._child.returncode

    def send_result(self, path: str, code: int) -> int:
        """Send the result of the task, if there is one; return the exit code."""
        size = os.path.getsize(path) if os.path.exists(path) else 0
        if size > channel.MOST_DATA:
            most = f"expected at most {channel.MOST_DATA}"
            self._report(f"the function's pickled result has {size} bytes: {most}")
            return 1
        if size:
            with open(path, "rb") as file:
                self._send(channel.DATA, file.read())
        return code

    def leave(self, code: int) -> int:
        """Report the program's end to the launcher; return the agent's exit code.

        The agent of a failed rank waits until all ranks have ended and the launcher dismisses the
        agent. If the agent ended earlier, mpirun or srun would kill the other agents, and killed
        ranks leave shared memory behind. A dismissed agent returns 0: the launcher knows of the
        failure, and Open MPI 5's mpirun sometimes hangs if ranks of several hosts fail together.

        The agent of an elastic job does not wait and returns 0, because the job goes on.
        """
        failed = code != 0 or bool(self._joined)
        end = {"code": code, "ended": self._ended, "goodbye": not self._joined}
        end["signal"] = self._signal
        self._send(channel.EXIT, json.dumps(end).encode())
        # sent now, because the backend may end the agent soon after this report
        if failed or self._flight.whole:
            self._send_flight()
        self._send(channel.CLEAN, b"")
        stays = failed and not self._elastic
        while stays and self._link and not self._dismissed and time.monotonic() < self._leave_by:
            self._serve_once(self._leave_by - time.monotonic())
        self._memory.remove(all_of_it=failed)
        while self._link and not self._link.has_arrived() and time.monotonic() < self._leave_by:
            self._serve_once(0.02)  # the launcher may still have to read this agent's frames
        if self._dismissed or self._elastic:
            return 0
        return code if code >= 0 else 128 - code

    def _start(self, command: list[str], assignment: dict) -> None:
        # Doubled, because the kernel resends data at growing intervals: after T seconds without a
        # network it may need another T seconds to notice that the network works again.
        if self._link:
            self._link.most_silence = 2 * assignment["host_timeout"] + 2 * channel.PROBE
        own = dict(os.environ)
        # In mode ps, remove MPI's variables: MPI would wait for the servers, which do not use MPI.
        if "DMLC_ROLE" in assignment["env"]:
            own = {name: own[name] for name in own if not environment.of_a_rank(name)}
        environ = {**own, **assignment["env"]}
        self._flight.whole = assignment["whole_flight"]
        self._elastic = environ.get(agent_protocol.ELASTIC) == "1"
        environ.pop(channel.VARIABLE, None)
        # Paths instead of descriptors, because children of the rank's program inherit no descriptor
        environ[agent_protocol.VARIABLE] = f"/proc/{os.getpid()}/fd/{self._goodbye_end}"
        environ[agent_protocol.SPACE] = agent_protocol.own_space()
        environ[agent_protocol.NEWS] = f"/proc/{os.getpid()}/fd/{self._news}"
        if not self._elastic:  # elastic jobs have no MPI
            self._memory = shared_memory.of_job(environ[agent_protocol.JOB])
            environ.update(self._memory.environment(environ))
        local_rank, ranks = assignment["place"] or (0, 1)
        cores = nodes.binding(local_rank, ranks, os.sched_getaffinity(0))
        environ.update(environment.threads(environ, assignment["local_size"], cores))
        environ.update(environment.with_job_site(environ))
        environ.update(environment.for_jax(environ))
        self._child = subprocess.Popen(
            command,
            env=environ,
            cwd=assignment["cwd"],
            # no input, because backends give it to different ranks, and Open MPI 5 hangs with it
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            close_fds=False,  # MPICH's connection to its process manager is an inherited descriptor
            preexec_fn=lambda: _begin(cores),
        )
        for stream, pipe in enumerate(self._pipes()):
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, selectors.EVENT_READ, self._reader(stream))

    def _pipes(self) -> list:
        return [self._child.stdout, self._child.stderr]

    def _report(self, text: str) -> None:
        self._send(channel.OUTPUT, b"\1" + f"hvdliterun: {text}\n".encode(errors="replace"))

    def _listen_to_signals(self) -> None:
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        self._selector.register(reader, selectors.EVENT_READ, self._receive_signal)

    def _serve_once(self, seconds: float) -> None:
        for key, _ in self._selector.select(min(max(seconds, 0), channel.PROBE)):
            key.data(key.fileobj)
        if self._link and self._link.is_lost():
            self._lose_launcher()

    def _receive_signal(self, reader: int) -> None:
        numbers = [number for number in os.read(reader, 512) if number != signal.SIGCHLD]
        if numbers:
            self._signal = numbers[0] if not self._ended else self._signal
            self._end()

    def _receive(self, _) -> None:
        if not self._link:
            return
        try:
            frames = self._link.receive()
        except (channel.BadFrame, channel.ChannelClosed):
            return self._lose_launcher()
        kinds = [kind for kind, _ in frames]
        for start, data in ((channel.NEWS[k], data) for k, data in frames if k in channel.NEWS):
            # do not wait if the pipe is full, because the program may be stopped
            with contextlib.suppress(BlockingIOError):
                os.write(self._news_end, start + data + b"\n")
        for mode in {data for kind, data in frames if kind == channel.LOOK}:
            self._send_flight(stacks=mode != channel.QUIETLY)
        if channel.BYE in kinds:
            self._dismissed = True
        elif channel.STOP in kinds:
            self._end()

    def _note_goodbyes(self, pipe: int) -> None:
        for line in os.read(pipe, 1 << 16).splitlines():
            word, process = line[:1], line[1:]
            if word == agent_protocol.RECORDER:
                self._flight.hold(process.decode())
            elif word in channel.PASSED_ON:
                self._send(channel.PASSED_ON[word], process)
            elif word == agent_protocol.RAISED:
                self._send(channel.SIGN, b"")
            else:
                (self._joined.add if word == agent_protocol.JOINED else self._joined.discard)(
                    process
                )

    def _send_flight(self, stacks: bool = True) -> None:
        if text := self._flight.read(stacks):
            self._send(channel.FLIGHT, text)

    def _lose_launcher(self) -> None:
        if self._link:
            self._selector.unregister(self._link.sock)
            self._link.close()
            self._link = None
        self._end()

    def _end(self) -> None:
        if self._ended:
            return
        self._ended = True
        self._leave_by = time.monotonic() + LEAVE_SECONDS
        if self._child and self._child.poll() is None:
            self._signal_all(signal.SIGTERM)
            self._kill_at = time.monotonic() + TERM_SECONDS

    def _signal_all(self, number: int) -> None:
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.killpg(self._child.pid, number)

    def _reader(self, stream: int):
        def forward(pipe) -> None:
            try:
                data = os.read(pipe.fileno(), 1 << 16)
            except BlockingIOError:
                return
            if data:
                self._send(channel.OUTPUT, bytes([stream]) + data)
            else:
                self._selector.unregister(pipe)

        return forward

    def _drain(self) -> None:
        """Read the rest of the output, for at most DRAIN_SECONDS."""
        deadline = time.monotonic() + DRAIN_SECONDS
        pipes = {pipe.fileno() for pipe in self._pipes()}
        while pipes & set(self._selector.get_map()) and time.monotonic() < deadline:
            self._serve_once(deadline - time.monotonic())

    def _send(self, kind: int, data: bytes) -> None:
        try:
            if self._link:
                self._link.send(kind, data)
        except channel.ChannelClosed:
            self._lose_launcher()


def _begin(cores: list[nodes.Core] | None) -> None:
    """Give the child a process group of its own, these cores, and SIGKILL when the agent dies."""
    if cores:
        os.sched_setaffinity(0, frozenset().union(*cores))
    os.setpgrp()
    _libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
