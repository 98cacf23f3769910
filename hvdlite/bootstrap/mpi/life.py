"""Begins and ends MPI in this process."""

import contextlib
import os
import time
from typing import Iterator, Optional, Sequence, Tuple

from hvdlite.bootstrap.mpi.loading import forget_confined
from hvdlite.core import mpi
from hvdlite.core.listening import has_fault_tolerance
from hvdlite.core.module_state import ModuleState
from hvdlite.core.native import HvdliteError, ffi, lib
from hvdlite.exit import forks


class _Life(ModuleState):
    """MPI in this process."""

    def begin(self) -> None:
        self.initialized = False  # True: hvdlite has initialized MPI
        self.limit: Optional[Tuple[float, int, str]] = None  # the arguments of end_by()


_life = _Life()


def is_running() -> bool:
    """Return True if this process may call MPI."""
    return mpi.is_running() and not forks.is_child()


def begin() -> None:
    """Initialize MPI, unless MPI runs already.

    :raises HvdliteError: MPI can't begin in this process.
    """
    if forks.is_child():
        raise HvdliteError(
            "init(): this process was forked from a process that runs MPI, and a child has no MPI: "
            "call hvdlite.init() in the process that the launcher has started"
        )
    if mpi.is_finalized():
        raise HvdliteError(
            "init(): MPI.Finalize() has been called, and MPI can't start again: call "
            "MPI.Finalize() after the last use of hvdlite, or don't call it: MPI is finalized when "
            "Python exits"
        )
    if not mpi.is_initialized():
        mpi.initialize()
        _life.initialized = True
    forget_confined()


def end_by(until: float, code: int, message: str) -> None:
    """Limit MPI_Finalize: if it still waits at this time, print a message and end the process.

    The launcher then ends the other ranks, because this rank ended without MPI_Finalize.
    """
    _life.limit = _life.limit or (until, code, message)


def end() -> None:
    """As the last exit function: finalize MPI if hvdlite initialized it or end_by() was called."""
    if not is_running() or not (_life.initialized or _life.limit):
        return
    until, code, message = _life.limit or (float("inf"), 0, "")
    with limit_call(until - time.monotonic(), code, message):
        mpi.finalize()


@contextlib.contextmanager
def limit_call(
    seconds: float, code: int, message: str, ranks: Sequence[int] = ()
) -> Iterator[None]:
    """Print the message and end the process if the block's MPI call takes more than ``seconds``.

    :param ranks: the ranks for which MPI waits; if given, the seconds count from the job's failure.
    """
    limit = ffi.NULL
    if seconds < float("inf"):
        limit = lib.hvd_limit_set(max(seconds, 0), ranks, len(ranks), code, message.encode())
    try:
        yield
    finally:
        lib.hvd_limit_lift(limit)


def end_all(code: int) -> None:
    """End all processes that were started together.

    Open MPI 5's launcher ends the other processes if this process ends without MPI_Finalize.
    MPI_Abort would crash or hang that launcher if another process waits in MPI_Finalize. A job
    with MPI's fault tolerance goes on after the end of one process, and needs MPI_Abort.
    """
    if os.environ.get("PRTE_LAUNCHED") and not has_fault_tolerance(os.environ):
        os._exit(code)
    mpi.abort(code)
