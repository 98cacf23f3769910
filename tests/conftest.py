"""Settings of all Python tests; parallel/ and contract/, which run in MPI jobs, have more."""

import os
import signal
from pathlib import Path

import pytest

# Ranks that fail in tests write no reports of the failure, because this path is no folder.
os.environ.setdefault("HVDLITE_REPORTS", os.devnull)
LEAN, PATH = str(Path(__file__).with_name("lean")), os.environ.get("PYTHONPATH")
if LEAN not in (PATH or ""):  # tests/lean makes imports faster in the processes of tests
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [LEAN, PATH]))

# With ``pytest -n 4``, as in ``make test``, tests of a group run one after the other, because they
# share emulated hosts or a module's fixture, or because they need all cores or most memory.
GROUPS = {
    "hosts": (
        "benchmarks",
        "launch_cluster",
        "launch_elastic",
        "launch_lost_hosts",
        "launch_ps",
        "launch_sge",
        "launch_slurm",
        "start_without_mpi",
    ),
    "parallel": ("parallel",),
    "shown": ("shown",),
    "sdist": ("sdist",),
    "rules": ("architecture", "modules", "error_words"),  # they share parsed files
    "as_horovod": ("as_horovod",),
    "imagenet": ("imagenet",),
    "docs": ("docs",),
    "sim": ("sim",),
}
GROUP_OF = {f"test_{name}": group for group, names in GROUPS.items() for name in names}


def pytest_configure() -> None:
    """Handle SIGINT again if a shell has started pytest in the background, ignoring SIGINT."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # because the same hook of pytest-xdist reads the marks
def pytest_collection_modifyitems(items) -> None:
    for item in items:
        if item.path.stem in GROUP_OF:
            item.add_marker(pytest.mark.xdist_group(GROUP_OF[item.path.stem]))


def pytest_collection_finish(session) -> None:
    """Fail if pytest-xdist has ignored GROUP_OF: it appends a test's group to the test's id."""
    if not getattr(session.config.option, "loadgroup", False):
        return
    for item in session.items:
        if item.path.stem in GROUP_OF and not item.nodeid.endswith(f"@{GROUP_OF[item.path.stem]}"):
            raise pytest.UsageError(f"pytest-xdist does not know the group of {item.nodeid}")
