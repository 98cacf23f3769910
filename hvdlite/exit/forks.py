"""A child made by os.fork has its parent's memory but no MPI, so it ends without MPI_Finalize.

mpi4py finalizes MPI at the very end of Python. A child that finalized MPI would wait forever for
the parent's threads, or take the parent out of its job. So a child ends just before that step, with
the exit code that Python would have returned.
"""

import atexit
import ctypes
import importlib
import signal

from hvdlite.core import mpi
from hvdlite.core.module_state import ModuleState
from hvdlite.exit import script_end


class _Forks(ModuleState):
    def begin(self) -> None:
        self.is_child = False
        self.keeps_out = False  # True: children are outside of the job even if no MPI runs here

    def begin_child(self) -> None:
        if not self.is_child and (self.keeps_out or mpi.is_running()):
            self.is_child = True
            _end_without_mpi()


_forks = _Forks()


def is_child() -> bool:
    """Return True if this process was forked from a process that ran MPI, or from a rank."""
    return _forks.is_child


def keep_out() -> None:
    """From now on treat this process's children as outside of the job, even if no MPI runs."""
    _forks.keeps_out = True


def _end_without_mpi() -> None:
    native = importlib.import_module("hvdlite.core.native")
    end = int(native.ffi.cast("intptr_t", native.ffi.addressof(native.lib, "hvd_end_child")))
    # exit functions run in reverse order, so this function runs before the earlier functions
    ctypes.pythonapi.Py_AtExit(ctypes.c_void_p(end))
    atexit.register(lambda: native.lib.hvd_end_child_with(_exit_code()))


def _exit_code() -> int:
    failed = script_end.failure()
    if isinstance(failed and failed.error, KeyboardInterrupt):
        return 128 + signal.SIGINT
    return failed.code if failed and not failed.unsaid else 0
