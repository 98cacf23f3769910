"""Processes that come into a running job, in the place of those that have died.

The first rank starts them, by MPI_Comm_spawn in a thread: training goes on meanwhile. A newcomer
prepares in a job of its own (imports, data, a net) and reports that it is ready. At a commit the
ranks of the job admit it, by MPI_Comm_accept and MPI_Comm_connect; all then begin a new job.
"""

import collections
import contextlib
import json
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

import numpy as np

from hvdlite.core import topology
from hvdlite.core.log import logger
from hvdlite.core.mpi import MPI
from hvdlite.core.native import HvdliteError
from hvdlite.core.objects import allgather_object
from hvdlite.core.reduce_ops import Max
from hvdlite.lifecycle import members, resets, watched
from hvdlite.lifecycle.limits import PATIENCE, limit_of
from hvdlite.lifecycle.watched import COMMAND, LAUNCHER, MOST, NEWCOMER, TOO_LATE
from hvdlite.numpy import allreduce

ATTEMPTS = 3  # to start newcomers that die before they are ready
LOOK_SECONDS = 0.5
GRACE_SECONDS = 1.0  # for a meeting that goes on though one of it has died
_INFO = 255  # bytes of a value in an MPI_Info of Open MPI

_READY, _PORT, _WELCOME, _NEVER = range(4)  # tags of messages

_came_in = threading.Event()  # a newcomer has reported that it is ready
_active = False  # elastic training has begun
_homes: List[str] = []  # the hosts of the ranks that the job began with
_present: List[str] = []  # the hosts of the present ranks
_call: Optional["_Call"] = None  # on the first rank


def begin() -> None:
    """Let :func:`missing` tell what the job lacks, from now on."""
    global _active
    _active = True
    if missing():
        members.note_death()  # of nobody: but MPI_Finalize would wait for newcomers


def missing() -> int:
    """Return how many ranks the job lacks, the same number on every rank."""
    return max(int(os.environ.get(MOST) or 0) - topology.size(), 0) if _active else 0


def call() -> None:
    """Note where the ranks are, and start processes for those that the job lacks, if it lacks any.

    Collective: a rank may die in it. It does not wait for the processes.
    """
    global _present
    told = allgather_object((socket.gethostname(), _homes), "elastic.hosts")
    _present = [host for host, _ in told]
    _homes[:] = max((homes for _, homes in told), key=len) or _present  # newcomers know none
    _call_again()


def _call_again() -> None:
    global _call
    wanted = missing()
    if not wanted or topology.rank() or MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        return
    attempt = _call.attempt + 1 if _call else 1
    if (_call is None or _call.has_ended()) and attempt <= ATTEMPTS:
        _call = _Call(places_for(wanted, _homes, _present), attempt)


def places_for(wanted: int, homes: List[str], present: List[str]) -> List[str]:
    """Return hosts for newcomers: those that have lost ranks, then those with the fewest.

    Only hosts that still have a rank: Open MPI 5's daemon on a host whose ranks have all died has
    forgotten the job, and MPI_Init fails there (PRRTE 3, pmix_server_dyn.c, _cnct).

    >>> places_for(3, ["a", "a", "b", "b", "c"], ["a", "b", "b"])
    ['a', 'a', 'b']
    """
    places: List[str] = []
    for _ in range(wanted):
        now = collections.Counter(present + places)
        lost = collections.Counter(homes) - now
        places.append(min(sorted(set(present)), key=lambda host: (not lost[host], now[host])))
    return places


def are_ready() -> bool:
    """Tell whether newcomers may be let in now: the same on all ranks. Collective."""
    if not missing():
        return False
    _call_again()
    ready = _call is not None and _call.is_ready()
    return bool(allreduce(np.array([int(ready)]), name="elastic.newcomers", op=Max)[0])


def let_in() -> None:
    """Go on with the newcomers, or without, if one dies meanwhile. Collective, outside of the job.

    :raises HvdliteError: some ranks did not come in time.
    """
    global _call
    comm, called = members.world(), _call  # None on all ranks but the first
    meeting = _Meeting(lambda: comm.Accept(called.open_port() if called else "", root=0), False)
    everyone = meeting.wait(lambda: members.is_seen(0) or bool(called and called.has_ended()))
    if everyone is None:
        members.revoke()
    if members.agreed(everyone is not None) and everyone is not None:
        if called:
            called.welcome()
        members.take(everyone)
    else:
        meeting.revoke()
        members.revoke()
        members.shrink()
    _call = None


def watch_first() -> None:
    """End this newcomer, in a thread, when the rank that has started it is gone."""
    first = MPI.Comm.Get_parent()
    first.Set_errhandler(MPI.ERRORS_RETURN)

    def watch() -> None:
        while not _came_in.wait(LOOK_SECONDS):
            if _is_dead(first):
                print("hvdlite: a new rank is not needed any more", file=sys.stderr, flush=True)
                os._exit(TOO_LATE)

    threading.Thread(target=watch, daemon=True).start()


def come_in() -> None:
    """Come into the job that has started this process. Collective, among those started together.

    Exits if that job has ended.
    """
    _came_in.set()
    comm, first = MPI.COMM_WORLD, MPI.Comm.Get_parent()
    try:
        if not comm.rank:
            _report_ready(first)
        port = _word_of(first, _PORT) if not comm.rank else ""
        meeting = _Meeting(lambda: comm.Connect(port, root=0), True)
        everyone = meeting.wait(lambda: _is_dead(first))
        if everyone is None:
            raise HvdliteError("the others have ended")
        resets.set_count(_word_of(first, _WELCOME))
    except (HvdliteError, MPI.Exception) as error:
        print(f"hvdlite: a new rank comes too late: {error}", file=sys.stderr, flush=True)
        sys.exit(TOO_LATE)
    members.take(everyone)
    watched.report(watched.LET_IN)


def _report_ready(first: MPI.Intercomm) -> None:
    sent = first.Isend([None, 0, MPI.BYTE], 0, _READY)
    while not sent.Test():
        first.Iprobe(0, _NEVER)  # raises if it is dead: a send to the dead may never end
        time.sleep(1e-3)


def _word_of(first: MPI.Intercomm, tag: int) -> Any:
    while not first.Iprobe(0, tag):  # raises if it is dead
        time.sleep(1e-3)
    return first.recv(source=0, tag=tag)


def _is_dead(comm: MPI.Intercomm) -> bool:
    try:
        for rank in range(comm.remote_size):
            comm.Iprobe(rank, _NEVER)
        return False
    except MPI.Exception:
        return True


class _Meeting:
    """The ranks of the job and the newcomers become one communicator, in a thread."""

    def __init__(self, connect: Callable[[], MPI.Intercomm], high: bool) -> None:
        self._connect, self._high = connect, high
        self._inter: Optional[MPI.Intercomm] = None
        self._everyone: Optional[MPI.Intracomm] = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._inter = self._connect()
            everyone = self._inter.Merge(self._high)
            everyone.Set_errhandler(MPI.ERRORS_RETURN)
            self._everyone = everyone
        except MPI.Exception:
            return

    def wait(self, is_hopeless: Callable[[], bool]) -> Optional[MPI.Intracomm]:
        """Return the communicator; None: it could not be made, or one of them stands still."""
        since: Optional[float] = None
        until = time.monotonic() + limit_of(PATIENCE)
        while self._thread.is_alive():
            self._thread.join(1e-3)
            if since is None and (is_hopeless() or time.monotonic() > until):
                since = time.monotonic()
            if since is not None and time.monotonic() > since + GRACE_SECONDS:
                return None
        return self._everyone

    def revoke(self) -> None:
        """End the calls of all who are still in this meeting, or have come out of it."""
        for comm in (self._inter, self._everyone):
            if comm is not None:
                comm.Revoke()


class _Call:
    """Processes that this one, the first rank, has started."""

    def __init__(self, places: List[str], attempt: int) -> None:
        self.attempt = attempt
        self._places = places
        self._newcomers: Optional[MPI.Intercomm] = None
        self._failed = False
        threading.Thread(target=self._start, daemon=True).start()

    def _start(self) -> None:
        command = command_of_a_rank()
        info = MPI.Info.Create(_info(self._places))
        try:
            comm = MPI.COMM_SELF.Spawn(command[0], command[1:], len(self._places), info)
            comm.Set_errhandler(MPI.ERRORS_RETURN)
            self._newcomers = comm
        except MPI.Exception as error:
            logger.warning("no new ranks on %s: %s", ", ".join(self._places), error)
            self._failed = True

    def is_ready(self) -> bool:
        return bool(self._newcomers and not self.has_ended() and self._newcomers.Iprobe(0, _READY))

    def has_ended(self) -> bool:
        return self._failed or bool(self._newcomers and _is_dead(self._newcomers))

    def open_port(self) -> str:
        """Return where the newcomers come in, and tell them."""
        assert self._newcomers  # they are ready
        port = MPI.Open_port()
        self._newcomers.send(port, 0, _PORT)
        return port

    def welcome(self) -> None:
        """Tell the newcomers that they are in, and after how many resets."""
        assert self._newcomers
        for newcomer in range(self._newcomers.remote_size):
            with contextlib.suppress(MPI.Exception):  # one has died since
                self._newcomers.send(resets.count(), newcomer, _WELCOME)


def command_of_a_rank() -> List[str]:
    """Return what has started this process."""
    given = os.environ.get(COMMAND)
    if given:
        return json.loads(given)
    words = Path("/proc/self/cmdline").read_bytes().split(b"\0")[:-1]
    return [sys.executable, *map(os.fsdecode, words[1:])]


def _info(places: List[str]) -> Dict[str, str]:
    variables = [f"{NEWCOMER}=1"]
    where = _short(os.environ.get(LAUNCHER, ""), _INFO - len(variables[0]) - len(LAUNCHER) - 2)
    variables += [f"{LAUNCHER}={where}"] if where else []
    hosts = ",".join(f"{host}:{count}" for host, count in collections.Counter(places).items())
    return {
        "PMIX_ENVAR": "\n".join(variables),
        "PMIX_HOST": hosts,
        "PMIX_MAPBY": "slot:OVERSUBSCRIBE",
        "PMIX_BINDTO": "none",
        "wdir": os.getcwd(),
    }


def _short(invitation: str, most: int) -> str:
    """Return the invitation with so many of its addresses as there is room for."""
    while len(invitation) > most and "," in invitation:
        invitation = invitation.rpartition(",")[0]
    return invitation
