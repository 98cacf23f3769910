"""Reads single keys from the terminal, without Enter."""

import contextlib
import os
import re
import select
import sys
import time
from typing import Callable, Iterator, List

UP, DOWN, ESCAPE, INTERRUPT = "\x1b[A", "\x1b[B", "\x1b", "\x03"
NextKey = Callable[[float], str]  # takes the seconds to wait; returns "" if no key was pressed


@contextlib.contextmanager
def pressed() -> Iterator[NextKey]:
    """Yield a function that waits for a key; it returns "" without a terminal in the foreground.

    The end of the block restores the terminal.
    """
    if not sys.stdin or not sys.stdin.isatty():
        yield _none
        return
    import termios
    import tty

    file = sys.stdin.fileno()
    # a background process that reads from the terminal would be stopped
    if os.tcgetpgrp(file) != os.getpgrp():
        yield _none
        return
    before = termios.tcgetattr(file)
    tty.setcbreak(file)
    read: List[str] = []
    try:
        yield lambda seconds: _key(file, read, seconds)
    finally:
        termios.tcsetattr(file, termios.TCSADRAIN, before)


def _none(seconds: float) -> str:
    time.sleep(max(seconds, 0))
    return ""


def _key(file: int, read: List[str], seconds: float) -> str:
    """Return the first key of the input; an arrow key is several characters."""
    if not read and select.select([file], [], [], max(seconds, 0))[0]:
        # nothing to read means that the terminal is gone
        text = os.read(file, 64).decode(errors="replace") or INTERRUPT
        read += re.findall("\x1b[[O][A-D]|.", text, re.S)
    return read.pop(0).replace("\x1bO", "\x1b[") if read else ""
