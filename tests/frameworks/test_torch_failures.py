"""hvdlite as PyTorch's backend: ranks that die, freeze or disagree, and groups that are aborted."""

import re
import sys

import pytest
from jobs import TESTS, TORCHRUN, came_to, started_by

ON_THREE = "hvdliterun", "-n", "3", sys.executable, "-c"

DIES_WHILE_DELEGATED = """
import os, signal, sys, threading, time
import torch, torch.distributed as dist, hvdlite.torch as hvd
from hvdlite.torch import delegate, tensors
hvd.init()
tensors.DELEGATED.add("cpu")

class BlocksInFirstCall(dist.ProcessGroupGloo):  # like NCCL, which waits forever for all ranks
    def allreduce(self, *args):
        threading.Event().wait()
    abort = allreduce

delegate.GROUPS["cpu"] = dist.ProcessGroupGloo  # in place of NCCL
if sys.argv[1] == "first":
    delegate.GROUPS["cpu"] = BlocksInFirstCall
else:
    hvd.allreduce(torch.ones(3))
if hvd.rank() == 1 and sys.argv[1] == "before":
    os.kill(os.getpid(), signal.SIGKILL)
if hvd.rank() == 1:
    sys.modules["hvdlite.torch.mover"].move_by = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
begin = time.monotonic()
for _ in range(2):
    try:
        hvd.allreduce(torch.ones(3))
    except hvd.HvdliteError as error:
        print(f"RAISED {hvd.rank()} {error.ranks} {time.monotonic() - begin < 30}", flush=True)
os._exit(7)
"""


@pytest.mark.parametrize("when", ["first", "before", "while"])
def test_an_error_names_the_rank_that_dies_while_gloo_moves_the_data(when):
    ended = started_by(*ON_THREE, DIES_WHILE_DELEGATED, when)
    raised = sorted(re.findall(r"RAISED .*", ended.stdout))
    assert raised == [f"RAISED {r} (1,) True" for r in (0, 0, 2, 2)], ended.stdout + ended.stderr


SHORT_OF_MEMORY = """
import os, resource, sys
sys.path.append(sys.argv[1])
import like_nccl, torch, hvdlite.torch as hvd
from hvdlite.torch import delegate, tensors
hvd.init()
tensors.DELEGATED.add("cpu")
delegate.GROUPS["cpu"] = like_nccl.LikeNccl
some = [torch.ones(8 << 20) for _ in range(2)]  # 32 MiB each
hvd.grouped_allreduce_([each[:9] for each in some])
if hvd.rank() == 1:
    pages = int(open("/proc/self/statm").read().split()[0])
    most = pages * resource.getpagesize() + (32 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
for _ in range(2):
    try:
        hvd.grouped_allreduce_(some, name="x")
    except hvd.HvdliteError as error:
        print(f"RAISED {hvd.rank()} {error.ranks} {error}", flush=True)
hvd.barrier()
os._exit(7)
"""


def test_a_rank_without_memory_for_the_fusion_buffer_is_named_on_every_rank():
    ended = started_by(*ON_THREE, SHORT_OF_MEMORY, str(TESTS))
    raised = re.findall(r"RAISED (\d) \(1,\) (.*)", ended.stdout)
    assert [rank for rank, _ in sorted(raised)] == list("001122"), ended.stdout + ended.stderr
    (text,) = {text for _, text in raised}
    assert re.search(
        r"'allreduce.x\[0\]' and 1 more: rank 1 could not move these 67108864 bytes", text
    )
    assert re.search("allocate memory.*smaller HVDLITE_FUSION_THRESHOLD", text)


FAILS = """
import datetime, os, signal, sys, time
import torch, torch.distributed as dist
from hvdlite import failure_of
how = sys.argv[1]
minute = datetime.timedelta(minutes=1)  # time in which all ranks import torch
dist.init_process_group("hvdlite", timeout=minute)
rank, t = dist.get_rank(), torch.ones(1000)
group, everyone = dist.new_group([0, 2]), dist.new_group(timeout=minute)
if how == "frozen":
    backend = everyone._get_backend(t.device)
    backend._set_default_timeout(datetime.timedelta(seconds=3))
dist.all_reduce(t)
if rank == 1:
    time.sleep(0.3)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
begin = time.monotonic()
works = []
if how == "killed":
    works = [dist.irecv(torch.ones(9), 1), dist.isend(t, 1)]
    works.append(dist.all_reduce(t.clone(), group=everyone, async_op=True))
futures = [work.get_future() for work in works]

def tell_of(call):
    try:
        call()
    except RuntimeError as error:
        seconds = time.monotonic() - begin
        text = str(error).splitlines()[0]
        failure = failure_of(error)
        fields = (failure.kind, failure.ranks) if failure else None
        print(f"RAISED {rank} {type(error).__name__} {seconds:.1f} s: {fields} {text}", flush=True)

if how == "frozen" and rank == 1:
    time.sleep(60)
else:
    tell_of(lambda: dist.all_reduce(t, group=everyone if how == "frozen" else None))
    for future in futures:
        tell_of(future.wait)
if how == "killed":
    tell_of(dist.group.WORLD.monitored_barrier)
elif rank != 1:
    dist.all_reduce(t, group=group)
    print("GOES ON", rank, flush=True)
os._exit(7)
"""


@pytest.mark.parametrize(
    "how, who, text",
    [
        ("killed", "0000022222", r"\('rank dead', \(1,\)\) .*rank 1 .*(died|dead|gone|ended)"),
        ("frozen", "02", "None .*Timed out waiting 3000 ms for"),
    ],
)
def test_a_killed_or_frozen_rank_is_an_error_on_every_waiting_torch_rank(how, who, text):
    ended = started_by(*ON_THREE, FAILS, how)
    raised = re.findall(r"RAISED (\d) (\w+) (\S+) s: (.*)", ended.stdout)
    assert sorted(rank for rank, *_ in raised) == list(who), ended.stdout + ended.stderr
    for _, kind, seconds, told in raised:
        assert kind == "DistBackendError" and float(seconds) < 30 and re.search(text, told), told
    if how != "killed":
        assert sorted(re.findall("GOES ON (.)", ended.stdout)) == ["0", "2"]


AGAIN = """
import sys, threading, time, torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

def train():
    for group in (None, dist.new_group()):
        model = torch.nn.Linear(2, 1, bias=False)
        model = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
        model(torch.full((1, 2), 1.0 + rank)).backward()
        assert model.module.weight.grad.tolist() == [[1.5, 1.5]]
    mesh = dist.init_device_mesh("cpu", (2,))
    model = torch.nn.Linear(2, 1, bias=False)
    fully_shard(model, mesh=mesh)
    model(torch.full((1, 2), 1.0 + rank)).backward()
    assert model.weight.grad.full_tensor().tolist() == [[1.5, 1.5]]
    sharded = distribute_tensor(torch.arange(4.0), mesh, [Shard(0)])
    assert sharded.sum().full_tensor().item() == 6

dist.Backend.default_device_backend_map["cpu"] = "hvdlite"
for turn, names in enumerate((["cpu:hvdlite,cuda:gloo"], ["hvdlite"], [])):
    dist.init_process_group(*names)
    assert dist.group.WORLD._get_backend(torch.device("cpu")).name() == "hvdlite"
    rank = dist.get_rank()
    if turn == 1 and rank == 0:
        threading.Timer(1, dist.distributed_c10d._abort_process_group).start()
        try:
            dist.all_reduce(torch.ones(4))
        except dist.DistBackendError as error:
            print("RAISED", error, flush=True)
    elif turn != 1:
        train()
        print(f"CAME TO {rank}{turn} end\\n", end="", flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()
    time.sleep(1 - rank)  # rank 1 begins first: the store still has old values of rank 0
"""


def test_a_process_group_can_be_made_again_after_destroy_and_abort(tmp_path):
    """The script makes the group with two names of backends, then with one, then without a name."""
    script = tmp_path / "again.py"
    script.write_text(AGAIN)
    ended = started_by(*TORCHRUN, "2", str(script))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert came_to(ended.stdout) == dict.fromkeys(("00", "10", "02", "12"), "end")
    assert "arning" not in ended.stderr, ended.stderr
    assert re.search(r"RAISED .*\(all_reduce\) was aborted on this rank", ended.stdout)


RAISES = """
import torch, torch.distributed as dist
dist.init_process_group("hvdlite")
if dist.get_rank() == 1:
    raise KeyError("label")
dist.all_reduce(torch.ones(1))
"""


def test_hvdliterun_names_the_rank_of_a_process_group_whose_script_raises():
    ended = started_by("hvdliterun", "-n", "2", sys.executable, "-c", RAISES)
    assert re.search(r"hvdliterun: rank 1 on .* failed with exit code 1", ended.stderr), (
        ended.stderr
    )
    assert "(its script raised KeyError: 'label')" in ended.stderr
    assert "(traceback folded: another rank is to blame)" in ended.stderr
