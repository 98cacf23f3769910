"""Tells the launcher's agent of this process when the process joins and leaves the job.

A process that ends between the two has not finished its training, whatever its exit code.
"""

import contextlib
import os

VARIABLE = "HVDLITE_WATCHED"  # the path of the agent's pipe
JOINED, LEFT = b"+", b"-"


def by_an_agent() -> bool:
    """Tell whether an agent of hvdliterun watches this process and ends the job with it."""
    return VARIABLE in os.environ


def say_joined() -> None:
    _say(JOINED)


def say_left() -> None:
    _say(LEFT)


def _say(word: bytes) -> None:
    """Write the word and this process's id to the agent's pipe, if there is one."""
    with contextlib.suppress(KeyError, OSError):
        pipe = os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(pipe, b"%b%d\n" % (word, os.getpid()))
        finally:
            os.close(pipe)
