"""What is imported when: hvdlite itself needs none of the frameworks, even where all are there."""

import subprocess
import sys

import pytest
from jobs import TESTS, assert_passed, mpirun

FRAMEWORKS = ("torch", "tensorflow", "keras", "jax", "xgboost", "lightgbm")


@pytest.mark.parametrize("module", ["hvdlite", "hvdlite.numpy", "hvdlite.launch.cli"])
def test_hvdlite_imports_no_framework(module):
    code = f"import {module}, sys; print(*[f for f in {FRAMEWORKS} if f in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == []


def test_the_bench_runs_without_mxnet_and_names_what_it_leaves_out():
    bench = ["-m", "hvdlite.bench", "--seconds=0.01", "--sizes=4K", "--idle=0"]
    job = assert_passed(mpirun(2, *bench, timeout=60))
    assert "not measured, as they are not installed: mxnet\n" in job.output
    assert "numpy    allreduce private" in job.output


@pytest.mark.parametrize("framework", ["torch", "keras"])
def test_the_monitor_counts_the_steps_of_every_framework(framework):
    script = TESTS / "frameworks" / "scripts" / "counted.py"
    for values in assert_passed(mpirun(2, str(script), framework)).results().values():
        assert 90 < values["steps"] <= 120
