"""``--check-build`` shows what this installation can do, and what is wrong with it."""

import subprocess
import sys

from hvdlite.launch import probe

_LOAD = "import hvdlite.core.native"


def show() -> int:
    """Print the table; return 1, the exit code, if ranks could not import hvdlite."""
    versions = probe.versions()
    mpi, mxnet = probe.mpi_version(), versions["MXNet"]
    trouble = _why_not_loaded()
    print(f"hvdlite {versions['hvdlite']} for Python {versions['Python']} ({sys.executable})")
    print(f"{_box(not trouble)} C library{f': {trouble}' if trouble else ''}")
    print(f"{_box(bool(mpi))} MPI{f': {mpi}' if mpi else ': no mpirun found'}")
    print(f"{_box(bool(mxnet))} MXNet{f': {mxnet}' if mxnet else ': not installed'}")
    return int(bool(trouble))


def _box(yes: bool) -> str:
    return "[X]" if yes else "[ ]"


def _why_not_loaded() -> str:
    """Return the last line of the import error; another process imports, as that starts MPI."""
    done = subprocess.run([sys.executable, "-c", _LOAD], capture_output=True, text=True)
    return done.stderr.strip().split("\n")[-1] if done.returncode else ""
