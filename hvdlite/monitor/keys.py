"""Reads single keys from the terminal, without Enter."""

import contextlib
import os
import re
import select
import sys
import time
from typing import Callable, Iterator, List

UP, DOWN, ESCAPE, INTERRUPT = "\x1b[A", "\x1b[B", "\x1b", "\x03"
NextKey = Callable[[float], str]  # waits this many seconds; returns the pressed key, or ""


@contextlib.contextmanager
def pressed() -> Iterator[NextKey]:
    """Yield a function that waits for a key. When the block ends, restore the terminal.

    If this process has no terminal, or runs in the background, the function always returns "".
    """
    if not sys.stdin or not sys.stdin.isatty():
        yield _none
        return
    import termios
    import tty

    file = sys.stdin.fileno()
    # The kernel stops a background process that reads from the terminal.
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
    """Return the first key of the input. An arrow key arrives as several characters."""
    if not read and select.select([file], [], [], max(seconds, 0))[0]:
        # An empty read means that the terminal is closed: end as after Ctrl-C.
        text = os.read(file, 64).decode(errors="replace") or INTERRUPT
        read += re.findall("\x1b[[O][A-D]|.", text, re.S)
    return read.pop(0).replace("\x1bO", "\x1b[") if read else ""
