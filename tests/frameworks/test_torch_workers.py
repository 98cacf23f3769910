"""A script for Horovod whose data loader starts workers in each way, unedited."""

import pytest
from jobs import assert_passed, mpirun

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
