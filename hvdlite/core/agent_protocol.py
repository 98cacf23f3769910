"""How a rank and its agent communicate: by environment variables, and by lines in a pipe.

The agent learns when its rank joins and leaves the job. If the rank's process ends after joining
and before leaving, the rank's training is not finished, even with exit code 0.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
from collections.abc import Sequence

from hvdlite.core import member
from hvdlite.core.headers import constant, text_of

# Environment variables that hvdliterun sets for agents and for the ranks of an elastic job.
ELASTIC = "HVDLITE_ELASTIC"  # 1: the job is elastic, so it goes on when ranks die
FEWEST = "HVDLITE_ELASTIC_MIN_RANKS"  # the fewest ranks with which the job goes on
# replacements join up to this number of ranks; 0: no replacements
MOST = "HVDLITE_ELASTIC_MAX_RANKS"
RESETS = "HVDLITE_ELASTIC_RESET_LIMIT"  # how often the job may go on after deaths; unset: no limit
LAUNCHER = "HVDLITE_LAUNCHER"  # for agents: the launcher's addresses, and the job's secret token
FOLD = "HVDLITE_FOLD_TRACEBACKS"  # 1: print no traceback of an error that another rank caused
# Only a process that replaces a dead rank has this variable: its number, and other ranks' ports.
REPLACEMENT = "HVDLITE_REPLACEMENT"
ELASTIC_ADDRESS = "HVDLITE_ELASTIC_ADDRESS"  # the address at which replacements reach the rank
TOO_LATE = 75  # exit code of a replacement that could not join

JOB = "HVDLITE_JOB"  # the number of hvdliterun's job; no other job has this number
VARIABLE = "HVDLITE_WATCHED"  # the path of the agent's pipe
SPACE = "HVDLITE_WATCHED_SPACE"  # the agent's PID namespace
_FULL_SECONDS = 5.0  # seconds that a rank waits for room in the pipe of a busy agent; chosen
# The path of the pipe to which the agent writes names of lost hosts, and replacements' ports.
NEWS = "HVDLITE_NEWS"
COMES = b"+"  # first byte of a line with a replacement's port, from the agent to its rank
# First bytes of the lines that a rank writes to its agent.
JOINED, LEFT, TROUBLE, RECORDER, LET_IN, RAISED = b"+", b"-", b"!", b"#", b"=", b"x"
# First bytes of lines with this rank's open port, and with the ranks that this rank has given up.
PORT, GIVEN_UP = b"@", b"~"
# First byte of a line that names the ranks that caused this rank's failure. The C library writes
# this line, too, but agents do not load the library.
_ERROR_H = text_of("base/error.h")
BLAME = constant(_ERROR_H, "HVD_BLAME").strip("'").encode()
# Why a rank blames other ranks: they did not submit a tensor (STALLED), or did not answer (SILENT).
STALLED = int(constant(_ERROR_H, "HVD_BLAME_STALLED"))
SILENT = int(constant(_ERROR_H, "HVD_BLAME_SILENT"))


def by_an_agent() -> bool:
    """Return True if an agent of hvdliterun watches this process."""
    return VARIABLE in member.own_environment()


def own_space() -> str:
    """Return the name of this process's PID namespace."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def report(word: bytes) -> None:
    """Tell the agent that this process has joined the job, left it, or joined as a replacement."""
    _write(line_of(word))


def report_recorder(path: str) -> None:
    """Report the path of this process's flight recorder, which the agent keeps open."""
    _write(RECORDER + path.encode() + b"\n")


def report_raised(cause: int = 0, ranks: Sequence[int] = ()) -> None:
    """Report that the script has failed, by an exception (its traceback follows) or sys.exit().

    :param ranks: other ranks that caused the failure.
    :param cause: how ``ranks`` caused the failure: ``STALLED`` or ``SILENT``; 0: in another way.
    """
    if ranks:
        numbers = " ".join(map(str, (cause, len(ranks), *ranks)))
        _write(BLAME + numbers.encode() + b"\n")
    report(RAISED)


def report_port(address: str, port: int) -> None:
    """Tell the agent at which port this process listens: a replacement is then ready to join."""
    _write(PORT + json.dumps({"address": address, "port": port}).encode() + b"\n")


def report_given_up(ranks: Sequence[int]) -> None:
    _write(GIVEN_UP + json.dumps({"ranks": list(ranks)}).encode() + b"\n")


def line_of(word: bytes) -> bytes:
    """Return the line that tells the agent ``word`` and this process's id."""
    return b"%b%d\n" % (word, os.getpid())


def open_pipe() -> int | None:
    """Return a new descriptor of the agent's pipe; None: this process has no agent."""
    try:
        return os.open(
            member.own_environment()[VARIABLE], os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
        )
    except (KeyError, OSError):
        return None


def _write(line: bytes) -> None:
    pipe = open_pipe()
    if pipe is not None:
        room = select.poll()
        room.register(pipe, select.POLLOUT)
        room.poll(1000 * _FULL_SECONDS)
        with contextlib.suppress(OSError):  # the agent has ended, or is stopped
            os.write(pipe, line)
        os.close(pipe)
