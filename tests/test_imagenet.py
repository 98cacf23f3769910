"""examples/imagenet.py: training from .rec files, resuming, and the benchmark on random images."""

import re
import shutil
import subprocess
import sys

import pytest
from jobs import ROOT, assert_passed, mpirun
from versions import no_examples

pytest.importorskip("sklearn.datasets")
pytestmark = no_examples

SMALL = [
    "--classes", "10", "--size", "32", "--model", "mobilenet0.25", "--batch-size", "16",
]  # fmt: skip


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    command = [sys.executable, "examples/make_records.py", str(folder), "--images", "600"]
    subprocess.run(command, cwd=ROOT, check=True, timeout=120)
    return folder


def train(records, checkpoint) -> str:
    return assert_passed(
        mpirun(
            2, "examples/imagenet.py", *SMALL, "--train", str(records / "train.rec"),
            "--val", str(records / "val.rec"), "--augment", "none", "--epochs", "4", "--lr", "0.4",
            "--warmup-epochs", "1", "--one-process", "100", "--checkpoint", str(checkpoint),
            timeout=150,
        )
    ).output  # fmt: skip


def test_imagenet_py_resumed_gives_the_weights_of_an_uninterrupted_run(records, tmp_path):
    """The weights are bitwise equal."""
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    losses = [float(x) for x in re.findall(r"^epoch \d: loss (\S+),", train(records, whole), re.M)]
    assert len(losses) == 4
    assert losses[3] < 0.7 * losses[0]
    shutil.copytree(whole / "00000003", resumed / "00000003")
    output = train(records, resumed)
    assert re.findall(r"^epoch (\d):", output, re.M) == ["4"]
    last = [(folder / "00000004" / "net.params").read_bytes() for folder in (whole, resumed)]
    assert last[0] == last[1]


@pytest.mark.parametrize("options", [[], ["--kvstore", "dist_sync_mpi"]], ids=["", "kvstore"])
def test_the_benchmark_of_imagenet_py_prints_speed_and_efficiency(options):
    line = ["examples/imagenet.py", *SMALL, "--benchmark", "--steps", "4", *options]
    output = assert_passed(mpirun(2, *line, timeout=100)).output
    assert re.search(r"^mobilenet0.25, 32 x 32, float32: [\d,.]+ images/s", output, re.M)
    assert "on 2 ranks" in output and "scaling efficiency" in output
