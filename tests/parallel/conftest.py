"""Fixtures of the tests that all ranks run together, with any number of ranks.

tests/test_parallel.py runs them with ``mpirun -n 3 python -m pytest tests/parallel``.
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
    """Wait for all operations of a test: otherwise MXNet may raise their errors in a later test."""
    yield
    mx.nd.waitall()


@pytest.fixture(scope="session")
def asynchronous() -> None:
    """Skip under MXNet's NaiveEngine a test whose ranks push operations in different orders."""
    if os.environ.get("MXNET_ENGINE_TYPE") == "NaiveEngine":
        pytest.skip("NaiveEngine waits inside each call")


@pytest.fixture
def parity(report_parity):
    """Return a function that checks that all ranks and a single process trained equal weights."""

    def check(name: str, trained: dict, expected: dict, bound: float) -> None:
        report_parity(name, largest_difference(trained, expected), bound)

    return check
