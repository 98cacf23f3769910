"""How an agent parts from its backend, and its program from the agent."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def go_on_apart() -> None:
    """Go on in a child that the backend does not know; for the backend this process has ended."""
    sys.stdout.flush()
    sys.stderr.flush()
    if os.fork():
        os._exit(0)
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):  # the backend waits for their ends
        os.dup2(nowhere, stream)


def lead_own_group() -> None:
    """In the child: lead a new process group, and be killed when the agent dies."""
    os.setpgrp()
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
