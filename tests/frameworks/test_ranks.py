"""Runs tests/frameworks/parallel in MPI jobs, each framework alone, on 1 to 4 ranks."""

from pathlib import Path

import pytest
from jobs import ROOT, assert_passed, mpirun, rank_commands

FILES = sorted((Path(__file__).parent / "parallel").glob("test_*.py"))
FRAMEWORKS = sorted({file.stem.split("_")[1] for file in FILES})

pytestmark = pytest.mark.timeout(1000)  # jobs have their own, shorter ones


def passed(framework: str, ranks: int, **env: str) -> None:
    files = [str(f.relative_to(ROOT)) for f in FILES if f.stem.split("_")[1] == framework]
    job = assert_passed(mpirun(ranks, *rank_commands(files), timeout=900, env=env))
    for line in job.output.splitlines():
        if "PARITY" in line or " passed" in line:
            print(f"{framework}, {ranks} ranks: {line}")


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_all(framework, ranks):
    passed(framework, ranks)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_other_backends_of_keras(backend, ranks):
    """Beside TensorFlow, its default."""
    passed("keras", ranks, KERAS_BACKEND=backend)
