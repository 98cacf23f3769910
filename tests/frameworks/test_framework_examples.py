"""The examples for PyTorch, Keras and XGBoost, as their users run them."""

import importlib.util
import re
import subprocess
import sys
from typing import NamedTuple

import pytest
from jobs import ROOT, assert_passed, mpirun


class Example(NamedTuple):
    library: str  # that it needs
    ending: str  # its last line
    accuracy: float  # the least
    accuracy_alone: float = 0  # of the script without hvdlite
    arguments: tuple = ()
    arguments_alone: tuple = ()


EXAMPLES = {
    "pytorch_mnist": Example(
        "torch", r"^[\d,]+ images/s, accuracy (\S+), \S+ s, ranks: (\d+)$", 0.9, 0,
        ("--epochs", "15"), ("--epochs", "2"),
    ),
    "keras_mnist": Example(
        "keras", r"^\w+: [\d,]+ images/s, accuracy (\S+), ranks: (\d+)$", 0.92, 0.92
    ),
    "xgboost_libsvm": Example(
        "xgboost", r"^30 rounds, accuracy (\S+), \S+ s, ranks: (\d+)$", 0.93, 0.93
    ),
}  # fmt: skip


@pytest.fixture(params=EXAMPLES)
def name(request) -> str:
    if importlib.util.find_spec(EXAMPLES[request.param].library) is None:
        pytest.skip("its library is not installed")
    return request.param


def test_it_learns(name):
    example = EXAMPLES[name]
    job = assert_passed(mpirun(2, f"examples/{name}.py", *example.arguments, timeout=250))
    print(job.output)
    ((accuracy, shown),) = re.findall(example.ending, job.output, re.M)
    assert float(accuracy) > example.accuracy and int(shown) == 2


def test_without_its_marked_lines_it_is_a_script_for_one_process(name, tmp_path):
    example = EXAMPLES[name]
    lines = (ROOT / "examples" / f"{name}.py").read_text().splitlines(keepends=True)
    alone = "".join(line for line in lines if not line.endswith("# hvdlite\n"))
    assert "hvd." not in alone.split('"""')[2]
    assert 4 <= len(lines) - alone.count("\n") <= 9
    (tmp_path / "alone.py").write_text(alone)
    command = [sys.executable, str(tmp_path / "alone.py"), *example.arguments_alone]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert ended.returncode == 0, ended.stderr
    ((accuracy, _),) = re.findall(example.ending, ended.stdout, re.M)
    assert float(accuracy) > example.accuracy_alone
