"""How a rank and its launcher communicate: by environment variables, and by lines in a pipe.

The launcher's agent of this process learns when the process joins and leaves the job.

A process that ends between the two has not finished its training, whatever its exit code.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence

from hvdlite.core import start

# Environment variables between a launcher and the ranks of an elastic job.
ELASTIC = "HVDLITE_ELASTIC"  # 1: ranks may die
FEWEST = "HVDLITE_ELASTIC_MIN_RANKS"  # that go on without others
MOST = "HVDLITE_ELASTIC_MAX_RANKS"  # new ones come up to so many in all; 0: none come
RESETS = "HVDLITE_ELASTIC_RESET_LIMIT"  # new beginnings after deaths; none: no limit
LAUNCHER = "HVDLITE_LAUNCHER"  # how the agent of a rank finds the launcher
FOLD = "HVDLITE_FOLD_TRACEBACKS"  # 1: of errors that are another rank's, show the text alone
# Set for a process that comes into a running job: its number and the others' ports.
REPLACEMENT = "HVDLITE_REPLACEMENT"
ELASTIC_ADDRESS = "HVDLITE_ELASTIC_ADDRESS"  # where replacements reach a rank
TOO_LATE = 75  # exit code of a replacement that nobody has let in

VARIABLE = "HVDLITE_WATCHED"  # the path of the agent's pipe
SPACE = "HVDLITE_WATCHED_SPACE"  # the agent's process numbers: a container has others
# The path of the pipe by which the agent names hosts that have vanished, and replacements' ports.
NEWS = "HVDLITE_NEWS"
COMES = b"+"  # the first byte of the latter
JOINED, LEFT, TROUBLE, RECORDER, LET_IN, RAISED = b"+", b"-", b"!", b"#", b"=", b"x"
PORT, GONE = b"@", b"~"  # where this rank's open port is; the numbers of ranks that are lost
BLAME = b"?"  # csrc/shm/flight.c writes it, with the ranks that a failure here is due to
# What those ranks did: submitted nothing; gave no sign of life.
STALLED, SILENT = 1, 2


def by_an_agent() -> bool:
    """Tell whether an agent of hvdliterun watches this process and ends the job with it."""
    return VARIABLE in start.own_environment()


def own_space() -> str:
    """Name what this process's number counts in."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def report(word: bytes) -> None:
    """Report what has happened to this process: it has joined the job, left it, come into one."""
    _write(line_of(word))


def report_recorder(path: str) -> None:
    """Report the path of this process's flight recorder: the agent keeps it open."""
    _write(RECORDER + path.encode() + b"\n")


def report_raised(how: int = 0, ranks: Sequence[int] = ()) -> None:
    """Report that the script has failed, by an exception (its traceback follows) or sys.exit().

    :param ranks: other ranks to which that is due.
    :param how: ``STALLED`` or ``SILENT``, else 0.
    """
    if ranks:
        numbers = " ".join(map(str, (how, len(ranks), *ranks)))
        _write(BLAME + numbers.encode() + b"\n")
    report(RAISED)


def report_port(address: str, port: int) -> None:
    """Report where this process's open port is: a replacement is ready then."""
    _write(PORT + json.dumps({"address": address, "port": port}).encode() + b"\n")


def report_gone(ranks: Sequence[int]) -> None:
    """Report the ranks, by number, without which the others go on."""
    _write(GONE + json.dumps({"ranks": list(ranks)}).encode() + b"\n")


def line_of(word: bytes) -> bytes:
    """Return the word with this process's id."""
    return b"%b%d\n" % (word, os.getpid())


def open_pipe() -> int | None:
    """Return a new descriptor of the agent's pipe; None: there is none."""
    try:
        return os.open(
            start.own_environment()[VARIABLE], os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
        )
    except (KeyError, OSError):
        return None


def _write(line: bytes) -> None:
    """Write to the agent's pipe, if there is one."""
    pipe = open_pipe()
    if pipe is not None:
        with contextlib.suppress(OSError):
            os.write(pipe, line)
        os.close(pipe)
