"""The examples for Keras and for sessions of TensorFlow 1, as their users run them."""

import re
import subprocess
import sys

import pytest
from jobs import ROOT, assert_passed, mpirun

EXAMPLES = {
    "keras_mnist": re.compile(r"^\w+: [\d,]+ images/s, accuracy (\S+), ranks: (\d+)$", re.M),
    "tensorflow_v1_hook": re.compile(r"^\d+ steps, accuracy (\S+), ranks: (\d+)$", re.M),
}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("example", EXAMPLES)
def test_it_reads_digits(example, ranks):
    job = assert_passed(mpirun(ranks, f"examples/{example}.py", timeout=250))
    (ending,) = EXAMPLES[example].findall(job.output)
    assert float(ending[0]) > 0.92
    assert int(ending[1]) == ranks


@pytest.mark.parametrize("example", EXAMPLES)
def test_without_its_marked_lines_it_is_a_script_for_one_process(example, tmp_path):
    lines = (ROOT / "examples" / f"{example}.py").read_text().splitlines(keepends=True)
    alone = [line for line in lines if not line.endswith("# hvdlite\n")]
    assert 5 <= len(lines) - len(alone) <= 9
    script = tmp_path / "alone.py"
    script.write_text("".join(alone))
    ended = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=250
    )
    assert ended.returncode == 0, ended.stderr
    (ending,) = EXAMPLES[example].findall(ended.stdout)
    assert float(ending[0]) > 0.92
