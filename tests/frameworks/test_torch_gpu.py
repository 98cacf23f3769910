"""A whole script for GPUs, on two ranks, with a fake GPU (scripts/fake_gpu.py says what is fake).

Other tests check the time limit of ``make test-gpu``.
"""

import json
import re
import runpy
import subprocess
import sys
import time

import gpu
import pytest
import torch
from jobs import ROOT, TESTS, started_by

SCRIPTS = TESTS / "frameworks" / "scripts"
TRAINING = runpy.run_path(str(SCRIPTS / "gpu_training.py"))


def of_one_process(optimizer: str) -> list:
    """Return the losses of one process that trains on the batches of all ranks."""
    torch.manual_seed(0)
    data = TRAINING["dataset"]()
    model = TRAINING["network"]()
    plain = TRAINING["optimizer_of"](model, optimizer)
    losses = []
    for rows, labels in [*torch.utils.data.DataLoader(data, batch_size=12)] * 2:
        plain.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(rows), labels)
        loss.backward()
        plain.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    "gpus, optimizer, options",
    [("2", "sgd", ()), ("2", "adam", ("--fp16-allreduce",)), ("1", "sgd", ())],
)
def test_a_script_for_gpus_trains_as_one_process(gpus, optimizer, options, tmp_path):
    """The losses equal those of one process. NCCL moves the data, unless the ranks share a GPU."""
    ended = started_by(
        *("hvdliterun", "-n", "2", str(SCRIPTS / "fake_gpu.py"), str(SCRIPTS / "gpu_training.py")),
        *("--checkpoint", str(tmp_path / "last.pt"), "--optimizer", optimizer, *options),
        FAKE_GPUS=gpus,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    losses = [float(loss) for loss in re.findall(r"LOSS \d \d (\S+)", ended.stdout)]
    assert losses == pytest.approx(of_one_process(optimizer), abs=2e-3 if options else 2e-6)
    calls = [int(number) for number in re.findall(r"CALLS OF NCCL (\d+)", ended.stdout)]
    # 8 steps sum gradients and a loss each; at least 4 calls are broadcasts and a trial call
    assert len(calls) == 2 and calls[0] == calls[1]
    assert calls[0] >= 2 * 8 + 4 if gpus == "2" else not calls[0]
    text = (
        "through memory of the host, because ranks 0 and 1 share a GPU, which NCCL 2.28.9 refuses"
    )
    assert ended.stderr.count(text) == (gpus == "1"), ended.stderr


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_programs_of_make_test_gpu_for_which_there_is_no_time_are_not_run(capsys):
    clock, seconds = Clock(), {}

    def run(program, left):
        seconds[program] = left
        clock.now += 90
        return {"a check": {"ok": True, "value": {"4 B": 1.0}}}

    found = gpu.run_all(list(gpu.RANKS)[:4], 190, run, clock)
    assert list(seconds.values()) == [190, 100]  # 10 s are too few to start a third program
    assert gpu.report(found) == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"2 passed, 0 failed, {sum('NOT RUN' in line for line in lines)} not run"
    assert "not run" in gpu.table(found)
    found["hvdlite.torch"]["a check"] = {"ok": False, "value": "wrong"}
    assert gpu.report(found) == 1


def test_make_test_gpu_ends_in_time_and_tells_what_has_not_run(tmp_path):
    """On the CPU, two ranks need more than the 15 s for their first program."""
    began, file = time.monotonic(), tmp_path / "gpu.json"
    command = "python", str(TESTS / "gpu.py"), "--device", "cpu", "--until", str(time.time() + 15)
    programs = "--only", "cpu:gloo,cuda:gloo", "hvdlite.torch"
    ended = started_by(*command, "--json", str(file), *programs)
    assert time.monotonic() - began < 60  # 15 s, and the time to import torch
    found = json.loads(file.read_text())
    states = [check["ok"] for program in gpu.RANKS for check in found.get(program, {}).values()]
    assert None in states and False not in states and ended.returncode == 2, ended.stdout


def test_make_test_gpu_writes_its_report_if_the_compiler_takes_too_long(tmp_path):
    file = tmp_path / "gpu.json"
    arguments = f"--device cpu --json {file}"
    ended = subprocess.run(
        ["make", "test-gpu", "COMPILE_SECONDS=0.001", f"AWAY={tmp_path}", f"ARGS={arguments}",
         f"AWAY_PYTHON={sys.executable}"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    checks = [each for found in json.loads(file.read_text()).values() if type(found) is dict
              for each in found.values()]  # fmt: skip
    assert checks and {check["ok"] for check in checks} == {None}, ended.stdout + ended.stderr
    assert ended.returncode != 0
