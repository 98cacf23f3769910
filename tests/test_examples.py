"""The examples and the code in the pages of docs/ run."""

import re
import subprocess
import sys

import pytest
from jobs import ROOT, assert_blocks_run, assert_passed, assert_program_learns, mpirun
from versions import MXNET2, no_examples, no_module

pytest.importorskip("sklearn.datasets")


@no_module
def test_the_example_of_mxnets_module_learns_on_two_ranks():
    job = assert_passed(
        mpirun(2, "examples/module_mnist.py", "--epochs", "5", "--lr", "0.05", timeout=150)
    )
    ending = re.search(
        r"^dist_sync_mpi: [\d,]+ images/s, accuracy (\S+),.* (\d+)$", job.output, re.M
    )
    assert ending, job.output
    assert float(ending[1]) > 0.9
    assert int(ending[2]) == 2


@pytest.mark.skipif(MXNET2, reason="the page is for MXNet 1's data iterators and metrics")
def test_the_python_code_of_the_training_page_runs(tmp_path):
    records = [sys.executable, "examples/make_records.py", str(tmp_path), "--images", "100"]
    subprocess.run(records, cwd=ROOT, check=True, timeout=120)
    assert assert_blocks_run("training", tmp_path) > 8


@no_examples
@pytest.mark.parametrize("pages", ["compression kvstore migrate", "elastic"])
def test_the_python_code_of_each_page_runs(pages, tmp_path):
    assert_blocks_run(pages, tmp_path)


def test_the_python_code_of_the_launch_page_runs(tmp_path):
    page = (ROOT / "docs" / "launch.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    (tmp_path / "job.py").write_text(code)
    command = [sys.executable, str(tmp_path / "job.py")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert ended.stdout.splitlines()[-1:] == [str([0.1 * rank for rank in range(4)])], ended.stderr


def test_every_page_with_code_is_tested():
    tested = {"training", "compression", "elastic", "kvstore", "migrate", "launch"}
    # frameworks/test_ranks.py tests these pages
    tested |= {"programs", "pytorch", "backend", "tensorflow", "trees", "jax"}
    pages = {page.stem for page in (ROOT / "docs").glob("*.md") if "```python" in page.read_text()}
    assert pages == tested


@no_examples
def test_the_mxnet_program_of_the_docs_learns(tmp_path):
    assert_program_learns("mxnet", tmp_path, jobs=2)
