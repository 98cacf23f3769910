"""``--check-build``: what this installation can do, and if it can't, why."""

import subprocess
import sys

from hvdlite.launch import probe

_LOAD = "import hvdlite._native"


def show() -> int:
    """Print it; exit code 1 if ranks could not even import hvdlite."""
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
    """Import it in a process of its own, as that starts MPI; return the last line of the error."""
    done = subprocess.run([sys.executable, "-c", _LOAD], capture_output=True, text=True)
    return done.stderr.strip().split("\n")[-1] if done.returncode else ""
