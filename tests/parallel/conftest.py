"""Tests that every rank runs, at any number of ranks.

``mpirun -n 3 python -m pytest tests/parallel`` runs them as tests/test_parallel.py does.
"""

import os

import hvdlite.mxnet as hvd  # noqa: F401

# isort: split
import gluon2  # noqa: F401
import mxnet as mx
import pytest
from meeting import *  # noqa: F403
from trained import largest_difference


@pytest.fixture(autouse=True)
def own_errors_only():
    """What a test has pushed ends, and raises, within it: MXNet tells an error to whoever waits."""
    yield
    mx.nd.waitall()


@pytest.fixture(scope="session")
def asynchronous() -> None:
    """For tests whose ranks push in different orders, which MXNet's NaiveEngine can't do."""
    if os.environ.get("MXNET_ENGINE_TYPE") == "NaiveEngine":
        pytest.skip("NaiveEngine waits inside each call")


@pytest.fixture
def parity(report_parity):
    """Checks that the ranks have trained what one process alone has."""

    def check(name: str, trained: dict, expected: dict, bound: float) -> None:
        report_parity(name, largest_difference(trained, expected), bound)

    return check
