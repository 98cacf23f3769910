"""Keys of the terminal as they are pressed, without Enter."""

import contextlib
import os
import re
import select
import sys
import time
from typing import Callable, Iterator, List

UP, DOWN, ESCAPE, INTERRUPT = "\x1b[A", "\x1b[B", "\x1b", "\x03"
NextKey = Callable[[float], str]  # seconds to wait; "": none was pressed


@contextlib.contextmanager
def pressed() -> Iterator[NextKey]:
    """Give a function that waits for a key; without a terminal, or in its background, none comes.

    The terminal is as it was before, however the block ends.
    """
    if not sys.stdin or not sys.stdin.isatty():
        yield _none
        return
    import termios
    import tty

    file = sys.stdin.fileno()
    if os.tcgetpgrp(file) != os.getpgrp():  # a background job that reads would be stopped
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
    """Return the first of the keys that are read; an arrow comes as several characters."""
    if not read and select.select([file], [], [], max(seconds, 0))[0]:
        text = os.read(file, 64).decode(errors="replace") or INTERRUPT  # nothing: no terminal now
        read += re.findall("\x1b[[O][A-D]|.", text, re.S)
    return read.pop(0).replace("\x1bO", "\x1b[") if read else ""
