"""Processes that PyTorch starts: workers of a data loader, in each way, and torchrun's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import MPI_SETTINGS, assert_passed, mpirun

SCRIPT = """
import argparse
import torch
import horovod.torch as hvd

class Rows(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, i): return torch.tensor([float(i)])

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--context")
    context = parser.parse_args().context
    hvd.init()
    rows = torch.utils.data.DataLoader(Rows(), 2, num_workers=2, multiprocessing_context=context)
    total = torch.cat(list(rows)).sum()
    print("SUM", hvd.allreduce(total, op=hvd.Sum, name="total").item(), flush=True)

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_a_data_loader_with_workers(context, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    line = ["-m", "hvdlite.as_horovod", str(script), "--context", context]
    assert assert_passed(mpirun(2, *line, timeout=90)).lines("SUM ") == ["56.0", "56.0"]


def test_torchrun_starts_no_lone_processes(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import hvdlite.torch as hvd; hvd.init(); print('TRAINS')")
    line = [str(Path(sys.executable).parent / "torchrun"), "--nproc-per-node=2", str(script)]
    env = {**os.environ, **MPI_SETTINGS}
    ended = subprocess.run(line, capture_output=True, text=True, env=env, timeout=120)
    assert ended.returncode == 1 and "TRAINS" not in ended.stdout
    assert "torchrun has started this process as one of 2 (RANK=" in ended.stderr
