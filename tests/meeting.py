"""pytest hooks with which all ranks of an MPI job run the same tests; a conftest.py imports them.

Rank 0 prints pytest's output; other ranks print only failures. After each test the ranks wait for
each other. If they do not meet, because a rank failed and left the other ranks in a collective, the
failed rank ends the job.
"""

import gc
import io
import sys
import time

import pytest
from mpi4py import MPI

from hvdlite import job

TIMEOUT_SECONDS = 120  # a test that takes longer ends the rank's process, and with it the job
# how long a rank whose test has failed waits for other ranks to finish the test
MEETING_SECONDS = 10

everyone = MPI.COMM_WORLD.Dup()


@pytest.hookimpl(trylast=True)  # last, because the terminal reporter has to exist
def pytest_configure(config):
    job.init()
    if everyone.rank != 0:
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        reporter._tw._file = io.StringIO()


def pytest_collection_modifyitems(items):
    for item in items:
        if not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(TIMEOUT_SECONDS, method="thread"))


def pytest_collection_finish(session):
    exempt_modules(session)


def exempt_modules(session) -> None:
    """Exempt all objects of imported modules from searches by gc: PyTorch has a million of them."""
    gc.collect()
    gc.freeze()
    session.modules_exempt = len(sys.modules)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    item.failed |= report.failed
    if report.failed and everyone.rank != 0:
        say(item, f"\nrank {everyone.rank}: {item.nodeid} failed\n{report.longreprtext}\n")
    return report


def say(item, text: str) -> None:
    capture = item.config.pluginmanager.get_plugin("capturemanager")
    with capture.global_and_fixture_disabled():
        sys.stderr.write(text)
        sys.stderr.flush()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    item.failed = False  # pytest_runtest_makereport is not called for tests outside this folder
    result = yield
    if not meet(MEETING_SECONDS if item.failed else TIMEOUT_SECONDS + MEETING_SECONDS):
        who = f"rank {everyone.rank}: {item.nodeid}"
        say(item, f"\n{who}: the other ranks have not ended this test; ending the job\n")
        MPI.COMM_WORLD.Abort(1)
    if len(sys.modules) > item.session.modules_exempt + 50:
        exempt_modules(item.session)
    return result


def meet(seconds: float) -> bool:
    """Return whether all ranks make this call within `seconds`."""
    until = time.monotonic() + seconds
    barrier = everyone.Ibarrier()
    while not barrier.Test():
        if time.monotonic() > until:
            return False
        time.sleep(1e-3)  # poll, because MPI has no wait with a time limit
    return True


@pytest.fixture
def rank() -> int:
    return everyone.rank


@pytest.fixture
def size() -> int:
    return everyone.size


@pytest.fixture(scope="session")
def several() -> None:
    """Skip the test if the job has only one rank."""
    if everyone.size < 2:
        pytest.skip("needs two ranks")


@pytest.fixture
def report_parity(capsys):
    """Return a function that prints (even without ``pytest -s``) how much the ranks' result differs
    from the result of one process, and checks that the difference is at most ``bound``."""

    def check(name: str, difference: float, bound: float) -> None:
        line = f"PARITY {everyone.size} ranks, {name}: {difference:.2e} (at most {bound:.0e})"
        if everyone.rank == 0:
            with capsys.disabled():
                print(f"\n{line}")
        assert difference <= bound

    return check
