"""Tells the agent that looks after this process that it is in the job, or has left it.

A process that is gone while it is in the job has not finished its training, whatever its exit code.
"""

import contextlib
import os

VARIABLE = "HVDLITE_WATCHED"  # the path of the agent's pipe
JOINED, LEFT = b"+", b"-"


def by_an_agent() -> bool:
    """Tell whether hvdliterun watches over this process: its end then ends the job."""
    return VARIABLE in os.environ


def say_joined() -> None:
    _say(JOINED)


def say_left() -> None:
    _say(LEFT)


def _say(word: bytes) -> None:
    """Write the word and this process's id; in silence if the agent is none or gone."""
    with contextlib.suppress(KeyError, OSError):
        pipe = os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(pipe, b"%b%d\n" % (word, os.getpid()))
        finally:
            os.close(pipe)
