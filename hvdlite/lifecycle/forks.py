"""A child made by os.fork has its parent's memory, but no MPI: it ends without MPI_Finalize.

mpi4py finalizes MPI at the very end of Python. In a child that would wait for ever for threads that
only the parent has, or take the parent out of its job. So a child ends just before, with the exit
code that Python would have given it.
"""

import atexit
import ctypes
import importlib
import os
import signal
import sys

from hvdlite.lifecycle import script_end

_is_child = False


def is_child() -> bool:
    """Tell whether this process was forked from one that ran MPI."""
    return _is_child


def _in_child() -> None:
    global _is_child
    script_end.forget()
    mpi = getattr(sys.modules.get("mpi4py.MPI"), "Is_initialized", None)
    if _is_child or mpi is None or not mpi() or sys.modules["mpi4py.MPI"].Is_finalized():
        return
    _is_child = True
    native = importlib.import_module("hvdlite.core.native")
    end = int(native.ffi.cast("intptr_t", native.ffi.addressof(native.lib, "hvd_end_child")))
    ctypes.pythonapi.Py_AtExit(ctypes.c_void_p(end))  # called before those that were there
    atexit.register(lambda: native.lib.hvd_end_child_with(_exit_code()))


def _exit_code() -> int:
    """Return Python's own."""
    failed = script_end.failure()
    if isinstance(failed and failed.error, KeyboardInterrupt):
        return 128 + signal.SIGINT
    return failed.code if failed and not failed.unsaid else 0


os.register_at_fork(after_in_child=_in_child)
