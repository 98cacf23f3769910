"""MPI begins with ``hvdlite.init()`` where it does not run yet, and what began so ends with Python.

mpi4py initializes MPI at its import, unless ``mpi4py.rc.initialize`` is False; a script may also
call ``MPI.Init_thread()`` and ``MPI.Finalize()`` itself.
"""

import contextlib
import time
from typing import Callable, Iterator, Optional, Sequence, Tuple

from hvdlite.core.mpi import MPI, forget_confined
from hvdlite.core.native import HvdliteError, ffi, lib
from hvdlite.exit import forks


class _Own:
    """MPI in this process."""

    began_here = False
    limit: Optional[Tuple[float, int, str]] = None  # of this process's end; see end_by


def is_running() -> bool:
    """Tell whether this process may call MPI."""
    return MPI.Is_initialized() and not MPI.Is_finalized() and not forks.is_child()


def begin() -> None:
    """Initialize MPI, unless it runs.

    :raises HvdliteError: in this process MPI can't begin any more.
    """
    if forks.is_child():
        raise HvdliteError(
            "init(): this process was forked from one that runs MPI, and a child has no MPI: call "
            "hvdlite.init() in the process that the launcher has started"
        )
    if MPI.Is_finalized():
        raise HvdliteError(
            "init(): MPI.Finalize() has been called, and MPI can't begin again: call it when "
            "hvdlite is no longer needed, or leave it to Python's exit"
        )
    if not MPI.Is_initialized():
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
        _Own.began_here = True
    forget_confined()


def end_by(until: float, code: int, words: str) -> None:
    """Let MPI_Finalize wait for other ranks until then; then print the words and end the process.

    The launcher ends the other ranks when a rank ends without having finalized MPI.
    """
    _Own.limit = _Own.limit or (until, code, words)


def end() -> None:
    """Finalize MPI if it began here, or if that has a limit; for the last exit function."""
    if not is_running() or not (_Own.began_here or _Own.limit):
        return
    until, code, words = _Own.limit or (float("inf"), 0, "")
    with limited(until - time.monotonic(), code, words):
        MPI.Finalize()


@contextlib.contextmanager
def limited(seconds: float, code: int, words: str, ranks: Sequence[int] = ()) -> Iterator[None]:
    """End the process with the words after so many seconds in MPI, whose waits nothing else ends.

    :param ranks: of the job, for which MPI waits: the seconds begin when the job has failed.
    """
    limit = ffi.NULL
    if seconds < float("inf"):
        limit = lib.hvd_limit_set(max(seconds, 0), ranks, len(ranks), code, words.encode())
    try:
        yield
    finally:
        lib.hvd_limit_lift(limit)


def before_finalize(leave: Callable[[], None]) -> None:
    """Call the function when the script calls ``MPI.Finalize()``: at first it frees attributes."""
    keyval = MPI.Comm.Create_keyval(delete_fn=lambda comm, key, value: leave())
    MPI.COMM_SELF.Set_attr(keyval, None)
