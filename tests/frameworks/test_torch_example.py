"""examples/pytorch_mnist.py as its users run it."""

import re
import subprocess
import sys

import pytest
from jobs import ROOT, assert_passed, mpirun

EXAMPLE = ROOT / "examples" / "pytorch_mnist.py"
ENDING = re.compile(r"^[\d,]+ images/s, accuracy (\S+), \S+ s, ranks: (\d+)$", re.M)


@pytest.mark.parametrize("ranks", [1, 2])
def test_it_reads_digits(ranks):
    job = assert_passed(mpirun(ranks, str(EXAMPLE), "--epochs", "15", timeout=250))
    print(job.output)
    (ending,) = ENDING.findall(job.output)
    assert float(ending[0]) > 0.9
    assert int(ending[1]) == ranks


def test_without_its_marked_lines_it_is_a_script_for_one_process(tmp_path):
    lines = EXAMPLE.read_text().splitlines(keepends=True)
    alone = [line for line in lines if not line.rstrip().endswith("# hvdlite")]
    assert 5 <= len(lines) - len(alone) <= 8
    script = tmp_path / "alone.py"
    script.write_text("".join(alone))
    command = [sys.executable, str(script), "--epochs", "2"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stderr
    assert ENDING.findall(ended.stdout)
