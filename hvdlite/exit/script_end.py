"""Finds out how the script has ended.

The interpreter keeps an uncaught exception in ``sys.last_value``, but not a SystemExit: the
interpreter reads the exception's ``code``, and forgets the exception before exit functions run. So
this module makes ``code`` a property. If the property's caller is not Python code, the caller is
the interpreter, and the script is ending.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
from collections import namedtuple
from collections.abc import Callable

from hvdlite.core.error_text import error_text, text_of
from hvdlite.core.module_state import ModuleState

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing takes 2 ms
    from typing import Any


# How a script failed. reason: "its script raised ValueError: no such file"; code: the process's
# exit code; error: the exception, None for SystemExit (it is freed already); unsaid: True if Python
# itself would end with exit code 0.
Failure = namedtuple("Failure", ("reason", "code", "error", "unsaid"), defaults=(None, False))


class _Seen(ModuleState):
    def begin(self) -> None:
        self.failure: Failure | None = None
        self.after_all: Callable[[Failure], None] | None = None

    begin_child = begin  # a child forgets what the parent has seen


_seen = _Seen()


def failure() -> Failure | None:
    error = getattr(sys, "last_value", None)  # the uncaught exception, if there was one
    return _seen.failure if error is None else _of_error(error)


def call_for_later_failures(function: Callable[[Failure], None]) -> None:
    """Call the function when a later exit function of the script fails."""
    _seen.after_all = function


def flush(text: str = "") -> None:
    """Print the text to stderr; flush stderr and stdout, if they can still be written."""
    for stream, more in ((sys.stderr, text), (sys.stdout, "")):
        # stderr is None or closed, or the disk is full
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.write(more)
            stream.flush()


def _note(failed: Failure) -> None:
    _seen.failure = failed
    if _seen.after_all:
        _seen.after_all(failed)


def failure_under_way() -> Failure | None:
    """Return how the script fails, if an exception is being handled right now; else None."""
    error = sys.exc_info()[1]
    if isinstance(error, SystemExit):
        return _of_exit(error.code)
    return None if error is None else _of_error(error)


def _of_error(error: BaseException) -> Failure:
    return Failure(f"its script raised {error_text(error)}", 1, error)


def _note_exit(value: Any, unsaid: bool = False) -> None:
    failed = _of_exit(value, unsaid)
    if failed:
        _note(failed)


def _of_exit(value: Any, unsaid: bool = False) -> Failure | None:
    """Interpret sys.exit(value) as Python does: a number, or a text with exit code 1."""
    if value is None or value == 0:
        return None
    number = isinstance(value, int)
    # the system keeps only 8 bits of an exit code, so 256 becomes 0
    seen = value & 0xFF if number else 1
    text = "" if number else f" ({text_of(value)})"
    reason = f"its script ended with exit code {int(value) if number else 1}{text}"
    return Failure(reason, seen or 1, unsaid=unsaid or not seen)


def watch_uncaught(before: Callable[[BaseException], str | None]) -> None:
    """Call the function before Python shows an uncaught exception.

    :param before: returns the text to show in place of the traceback; None: the traceback is
        shown.
    """
    show = sys.excepthook

    def hook(kind, error, trace):
        text = before(error)
        # print the traceback, or call the hook that the user has set
        if text is None or show is not sys.__excepthook__:
            return show(kind, error, trace)
        with contextlib.suppress(OSError, ValueError, AttributeError):
            print(text, file=sys.stderr, flush=True)

    sys.excepthook = hook


def _is_outermost() -> bool:
    """Return True if the interpreter, not Python code, called this function's caller."""
    try:
        sys._getframe(2)
    except ValueError:
        return True
    return False


def _watch_system_exit() -> None:
    member = SystemExit.__dict__["code"]

    def code(error):
        value = member.__get__(error)
        if _is_outermost():
            _note_exit(value)
        return value

    (attributes,) = gc.get_referents(SystemExit.__dict__)
    attributes["code"] = property(code, member.__set__, member.__delete__, member.__doc__)
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(SystemExit))


def _exit(status=None, /):
    """Exit the interpreter by raising SystemExit(status); replaces sys.exit.

    Before Python 3.12 the interpreter does not read ``code`` after the original sys.exit.
    """
    raise SystemExit(status)


def _watch_exit_functions() -> None:
    """Note exceptions of exit functions: Python prints them, but still ends with exit code 0."""
    show = sys.unraisablehook

    def hook(unraisable, /):
        show(unraisable)
        if "atexit callback" in (unraisable.err_msg or ""):
            error = unraisable.exc_value
            if isinstance(error, SystemExit):
                _note_exit(error.code, unsaid=True)
            else:
                reason = f"an exit function of its script raised {error_text(error)}"
                _note(Failure(reason, 1, unsaid=True))

    sys.unraisablehook = hook


_watch_system_exit()
if sys.version_info < (3, 12):
    sys.exit = _exit
_watch_exit_functions()
