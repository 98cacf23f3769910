"""Keeps the import of mpi4py.MPI from beginning MPI in the child of a rank.

A launcher's variables there are the rank's: MPI would wait for a second such rank. A script that
begins MPI at its top does so again in each worker that spawn or forkserver start.
"""

import os
import sys

from hvdlite.core import start
from hvdlite.patches.after_import import AfterImport


def watch() -> None:
    """Have mpi4py leave MPI to ``MPI.Init()`` here, if this process is such a child."""
    is_told = start.has_launcher_of_mpi(os.environ)
    if not start.is_worker() and (not is_told or start.has_launcher_of_mpi()):
        return
    if sys.modules.get("mpi4py"):
        sys.modules["mpi4py"].rc.initialize = False
    else:
        sys.meta_path.insert(0, AfterImport("mpi4py", _execute))


def _execute(mpi4py, code) -> None:
    code(mpi4py)
    mpi4py.rc.initialize = False
