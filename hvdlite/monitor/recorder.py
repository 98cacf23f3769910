"""Registers this rank's flight recorder with the processes that read it after a stall or a failure.

Under hvdliterun the agents and the launcher write the report. Under other launchers one surviving
rank of each host writes a report, in a thread that sleeps until the engine notes a stall or a
failure.
"""

import contextlib
import faulthandler
import json
import os
import socket
import time
from typing import Dict, List, Optional, Sequence, Tuple

from hvdlite.core import agent_protocol
from hvdlite.core.module_state import ModuleState
from hvdlite.core.native import lib
from hvdlite.core.world import World
from hvdlite.monitor import memory, report

# Number of exchanges that compare a host's clock with rank 0's. Only the fastest exchange counts.
# Chosen to be small, because rank 0 serves one host after another.
_EXCHANGES = 8


class _Recorders(ModuleState):
    def begin(self) -> None:
        self.stacks: Optional[int] = None  # a file descriptor whose number faulthandler keeps
        self.bell: Optional[int] = None  # the pipe to which the engine writes after a failure
        # The recorders of all ranks on this host, including this rank's recorder.
        self.neighbors: List[memory.Recorder] = []
        self.reporter: Optional[report.Reporter] = None


_recorders = _Recorders()


def begin(world: World, transport: str) -> None:
    """Exchange the paths of recorders with all ranks, after the C library's init. Collective."""
    file = lib.hvd_flight_file()
    job = os.environ.get(agent_protocol.JOB, os.urandom(8).hex())
    own = (socket.gethostname(), os.getpid(), file, job)
    cards = world.allgather(own)
    job = cards[0][3]
    about = {"job": job, "host": own[0], "began": time.strftime("%Y-%m-%d %H:%M:%S")}
    members = json.dumps(about)[1:-1].encode()
    lib.hvd_set_clock(*offset_to_first(world, [card[0] for card in cards]), members)
    if file < 0:
        return
    signal_number = report.STACKS_SIGNAL if _register_stacks(file) else 0
    lib.hvd_flight_describe(job.encode(), transport.encode(), signal_number)
    _recorders.neighbors = list(_open(card for card in cards if card[0] == own[0] and card[2] >= 0))
    if agent_protocol.by_an_agent():
        agent_protocol.report_recorder(f"/proc/{os.getpid()}/fd/{file}")
        _recorders.bell = agent_protocol.open_pipe()
        word = agent_protocol.line_of(agent_protocol.TROUBLE)
    else:
        _recorders.reporter = report.Reporter(job, _recorders.neighbors)
        _recorders.bell, word = _recorders.reporter.bell, b"!"
    if _recorders.bell is not None:
        lib.hvd_flight_bell(_recorders.bell, word)


def offset_to_first(world: World, hosts: Sequence[str]) -> Tuple[float, float]:
    """Return by how many seconds rank 0's clock is ahead of this rank's, and the largest error.

    Collective. The lowest rank of each host exchanges messages with rank 0. The fastest exchange
    gives the result; the error is half of the time of this exchange. Later, clocks without NTP may
    drift by 50 us per second. Ranks on rank 0's host use the same clock, and get 0, 0.
    """
    firsts: Dict[str, int] = {}
    for rank, host in enumerate(hosts):
        firsts.setdefault(host, rank)
    others = [rank for rank in firsts.values() if rank]
    if not others:
        return 0.0, 0.0
    if world.rank == 0:
        for other in others:
            for _ in range(_EXCHANGES):
                world.receive(other)
                world.send(time.monotonic(), other)
    measured = _measure(world) if world.rank in others else (0.0, 0.0)
    return world.allgather(measured)[firsts[hosts[world.rank]]]


def _measure(world: World) -> Tuple[float, float]:
    trips = []
    for _ in range(_EXCHANGES):
        begin = time.monotonic()
        world.send(None, 0)
        clock_of_0 = world.receive(0)
        trips.append((time.monotonic() - begin, begin, clock_of_0))
    seconds, begin, clock_of_0 = min(trips)
    return clock_of_0 - (begin + seconds / 2), seconds / 2


def _open(cards):
    for _, pid, file, _ in cards:
        with contextlib.suppress(OSError, memory.NoRecorder):  # the rank is in another container
            yield memory.Recorder(f"/proc/{pid}/fd/{file}")


def _register_stacks(file: int) -> bool:
    """Make the signal append stacks to the recorder's file, and still call the user's handler."""
    try:
        end = os.open(f"/proc/self/fd/{file}", os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    except OSError:
        return False
    if _recorders.stacks is None:
        _recorders.stacks = end
        lib.hvd_stacks_keep_users(report.STACKS_SIGNAL)
        # all_threads=False: faulthandler could read the stack of a thread that is just ending.
        faulthandler.register(report.STACKS_SIGNAL, file=end, all_threads=False, chain=False)
        lib.hvd_stacks_install(report.STACKS_SIGNAL, end)
    else:
        os.dup2(end, _recorders.stacks, inheritable=False)
        os.close(end)
    return True


def before_leaving() -> None:
    """Wait until the reports about all stalls and failures noted so far are written."""
    if _recorders.reporter:
        _recorders.reporter.finish()


def end() -> None:
    """Close the recorders, after the C library has closed the job."""
    for recorder in _recorders.neighbors:
        recorder.close()
    _recorders.neighbors = []
    if _recorders.reporter:
        _recorders.reporter.close()
    elif _recorders.bell is not None:
        os.close(_recorders.bell)
    _recorders.reporter = _recorders.bell = None
    if _recorders.stacks is not None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, _recorders.stacks, inheritable=False)
        os.close(nowhere)
