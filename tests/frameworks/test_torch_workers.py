"""Processes that PyTorch starts: workers of data loaders, ranks of torchrun, spawned children."""

import os

from jobs import TESTS, TORCHRUN, Job, assert_passed, mpirun, started_by
from places import WITHOUT_MPI

SCRIPT = """
import argparse
import torch
import horovod.torch as hvd

class Rows(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, i): return torch.tensor([float(i)])

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--contexts", nargs="+")
    contexts = parser.parse_args().contexts
    hvd.init()
    for context in contexts:
        how = {"num_workers": 2, "multiprocessing_context": context}
        rows = torch.utils.data.DataLoader(Rows(), 2, **how)
        total = torch.cat(list(rows)).sum()
        print("SUM", hvd.allreduce(total, op=hvd.Sum, name="total").item(), flush=True)

if __name__ == "__main__":
    main()
"""


def test_a_data_loader_with_forked_or_spawned_workers_works(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    contexts = ["--contexts", "fork", "spawn"]  # tests/test_start.py tests forkserver
    job = mpirun(2, "-m", "hvdlite.as_horovod", str(script), *contexts, timeout=150)
    assert assert_passed(job).lines("SUM ") == ["56.0"] * 4


SUM = """
import torch, hvdlite.torch as hvd
hvd.init()
total = hvd.allreduce(torch.full((3,), hvd.rank() + 1.0), op=hvd.Sum)
print(f"SUM {hvd.rank()} of {hvd.size()}: {total.tolist()}\\n", end="", flush=True)
"""


BITS = """
import hashlib, importlib.util, sys
from jobs import report

del sys.argv[0]
spec = importlib.util.spec_from_file_location("example", sys.argv[0])
example = importlib.util.module_from_spec(spec)
spec.loader.exec_module(example)
nets, accuracy = [], example.accuracy
example.accuracy = lambda net, *data: nets.append(net) or accuracy(net, *data)
example.main()
(net,) = nets
arrays = [value.numpy().tobytes() for value in net.state_dict().values()]
digest = hashlib.sha256(b"".join(arrays)).hexdigest()
report(example.hvd.rank(), digest=digest, size=example.hvd.size())
"""


def test_an_example_gives_the_same_bits_under_torchrun_and_mpi(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(BITS)
    line = [str(script), "examples/pytorch_mnist.py", "--epochs", "1"]
    theirs = assert_passed(mpirun(2, *line, timeout=120)).results()
    path = os.pathsep.join([str(TESTS), os.environ["PYTHONPATH"]])
    ended = started_by(*TORCHRUN, "2", *line, **WITHOUT_MPI, PYTHONPATH=path)
    assert Job(ended.returncode, ended.stdout, 0).results() == theirs, ended.stderr
    assert theirs[0] == theirs[1]


def test_torchrun_restarts_a_failed_job(tmp_path):
    script = tmp_path / "script.py"
    first = "os.environ['TORCHELASTIC_RESTART_COUNT'] == '0'"
    script.write_text(f"{SUM}import os, sys\nif hvd.rank() and {first}: sys.exit(3)\n")
    run, *options = TORCHRUN
    ended = started_by(run, "--max-restarts=1", *options, "2", str(script), **WITHOUT_MPI)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("SUM 0 of 2") == 2


CHILD = """
import sys
import torch, torch.distributed as dist

def make(rank, path, size):
    store = dist.FileStore(path, size)
    dist.init_process_group("hvdlite", rank=rank, world_size=size, store=store)
    t = torch.ones(1)
    dist.all_reduce(t)
    dist.destroy_process_group()
    print(f"SUM {t.item()}\\n", end="", flush=True)

if __name__ == "__main__":
    make(0, sys.argv[1], 1)
    for size in (1, 2):
        torch.multiprocessing.spawn(make, (f"{sys.argv[1]}{size}", size), nprocs=size)
"""


def test_spawned_children_of_a_process_that_had_a_group_make_new_groups(tmp_path):
    """A child may also be the only rank of its group."""
    (tmp_path / "child.py").write_text(CHILD)
    line = str(tmp_path / "child.py"), str(tmp_path / "store")
    ended = started_by("python", *line, timeout=150, **WITHOUT_MPI)
    assert ended.stdout.splitlines() == ["SUM 1.0", "SUM 1.0", "SUM 2.0", "SUM 2.0"], ended.stderr
