"""The examples, as their users run them."""

import re

import pytest
from jobs import assert_passed, mpirun
from versions import no_module

pytest.importorskip("sklearn.datasets")


@no_module
@pytest.mark.parametrize("ranks", [1, 2])
def test_module_mnist(ranks):
    job = assert_passed(
        mpirun(ranks, "examples/module_mnist.py", "--epochs", "5", "--lr", "0.05", timeout=150)
    )
    ending = re.search(
        r"^dist_sync_mpi: [\d,]+ images/s, accuracy (\S+),.* (\d+)$", job.output, re.M
    )
    assert ending, job.output
    assert float(ending[1]) > 0.9
    assert int(ending[2]) == ranks
