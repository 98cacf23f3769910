"""Tests that every rank runs, at any number of ranks.

``mpirun -n 3 python -m pytest tests/parallel`` runs them as tests/test_parallel.py does.

Rank 0 writes what pytest writes; another rank is heard only when a test fails on it. After each
test the ranks wait for each other. When they do not meet, because a rank failed half-way and left
the others in a collective, the failed rank ends the job.
"""

import io
import os
import sys
import time

import hvdlite.mxnet as hvd

# isort: split
import gluon2  # noqa: F401
import mxnet as mx
import pytest
from mpi4py import MPI
from nets import largest_difference

TIMEOUT_SECONDS = 120  # of one test: then its rank's process ends, and with it the job
MEETING_SECONDS = 10  # how long a rank whose test failed waits for the others to finish it

everyone = MPI.COMM_WORLD.Dup()


@pytest.hookimpl(trylast=True)  # the terminal reporter is there by then
def pytest_configure(config):
    hvd.init()
    if hvd.rank() != 0:
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        reporter._tw._file = io.StringIO()


def pytest_collection_modifyitems(items):
    for item in items:
        if not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(TIMEOUT_SECONDS, method="thread"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    item.failed = getattr(item, "failed", False) or report.failed
    if report.failed and hvd.rank() != 0:
        say(item, f"\nrank {hvd.rank()}: {item.nodeid} failed\n{report.longreprtext}\n")
    return report


def say(item, text: str) -> None:
    capture = item.config.pluginmanager.get_plugin("capturemanager")
    with capture.global_and_fixture_disabled():
        sys.stderr.write(text)
        sys.stderr.flush()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    result = yield
    if not meet(MEETING_SECONDS if item.failed else TIMEOUT_SECONDS + MEETING_SECONDS):
        say(item, f"\nrank {hvd.rank()}: {item.nodeid}: the others do not come; ending the job\n")
        MPI.COMM_WORLD.Abort(1)
    return result


def meet(seconds: float) -> bool:
    """Tell whether all ranks come here in that time."""
    until = time.monotonic() + seconds
    barrier = everyone.Ibarrier()
    while not barrier.Test():
        if time.monotonic() > until:
            return False
        time.sleep(1e-3)  # MPI can only be polled
    return True


@pytest.fixture(autouse=True)
def own_errors_only():
    """What a test has pushed ends, and raises, within it: MXNet tells an error to whoever waits."""
    yield
    mx.nd.waitall()


@pytest.fixture
def rank() -> int:
    return hvd.rank()


@pytest.fixture
def size() -> int:
    return hvd.size()


@pytest.fixture(scope="session")
def asynchronous() -> None:
    """For tests whose ranks push in different orders, which MXNet's NaiveEngine can't do."""
    if os.environ.get("MXNET_ENGINE_TYPE") == "NaiveEngine":
        pytest.skip("NaiveEngine waits inside each call")


@pytest.fixture(scope="session")
def several() -> None:
    """For tests that need at least two ranks."""
    if hvd.size() < 2:
        pytest.skip("needs two ranks")


@pytest.fixture
def parity(capsys):
    """Checks that the ranks have trained what one process alone has; ``pytest -s`` is not needed to
    see by how much the two differ."""

    def check(name: str, trained: dict, expected: dict, bound: float) -> None:
        difference = largest_difference(trained, expected)
        line = f"PARITY {hvd.size()} ranks, {name}: {difference:.2e} (at most {bound:.0e})"
        if hvd.rank() == 0:
            with capsys.disabled():
                print(f"\n{line}")
        assert difference <= bound

    return check


@pytest.fixture
def kv():
    return mx.kv.create("dist_sync_mpi")
