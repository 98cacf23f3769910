"""What is imported when: hvdlite itself needs none of the frameworks, even where all are there."""

import subprocess
import sys

import pytest

FRAMEWORKS = ("torch", "tensorflow", "keras", "jax", "xgboost", "lightgbm")


@pytest.mark.parametrize("module", ["hvdlite", "hvdlite.numpy", "hvdlite.launch.cli"])
def test_hvdlite_imports_no_framework(module):
    code = f"import {module}, sys; print(*[f for f in {FRAMEWORKS} if f in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == []
