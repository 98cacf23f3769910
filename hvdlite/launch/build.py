"""``--check-build`` shows what this installation can do, and what is wrong with it."""

import sys

from hvdlite.launch import probe


def show() -> int:
    """Print the table; return 1, the exit code, if no rank could run."""
    versions = probe.versions()
    mpi, mxnet = probe.mpi_version(), versions["MXNet"]
    trouble = probe.why_not_loaded()
    print(f"hvdlite {versions['hvdlite']} for Python {versions['Python']} ({sys.executable})")
    print(f"{_box(not trouble)} C library{f': {trouble}' if trouble else ''}")
    print(f"{_box(bool(mpi))} MPI{f': {mpi}' if mpi else ': no mpirun found'}")
    print(f"{_box(bool(mxnet))} MXNet{f': {mxnet}' if mxnet else ': not installed'}")
    return int(bool(trouble) or not mpi)


def _box(yes: bool) -> str:
    return "[X]" if yes else "[ ]"
