"""hvdlite as PyTorch's backend: programs for torchrun as they are, failures, compilation."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import MPI_SETTINGS
from places import WITHOUT_MPI

from benchmarks import serving

pytestmark = pytest.mark.timeout(600)  # programs have their own, shorter ones
SCRIPTS = Path(__file__).parent / "scripts"
PROGRAMS = str(SCRIPTS / "torch_programs.py")
TORCHRUN = "torchrun", "--standalone", "--nproc-per-node"


def started_by(*command: str, timeout=250, **env) -> subprocess.CompletedProcess:
    """Run a program of this Python's folder."""
    line = [str(Path(sys.executable).parent / command[0]), *command[1:]]
    env = {**os.environ, **MPI_SETTINGS, "GLOO_SOCKET_IFNAME": "lo", **env}
    return subprocess.run(line, capture_output=True, text=True, env=env, timeout=timeout)


def came_to(output: str) -> dict:
    return dict(re.findall(r"CAME TO (\w+) (\S+)", output))


def test_programs_come_to_what_they_come_to_with_gloo():
    """By hvdliterun over MPI, and by torchrun where there is no MPI: equal to the last digit.

    How Gloo's ends does not matter: PyTorch aborted once at its exit, after all results.
    """
    torchrun = (*TORCHRUN, "2", PROGRAMS)
    gloo = started_by(*torchrun, "gloo")
    ours = started_by("hvdliterun", "-n", "2", PROGRAMS, "cpu:hvdlite,cuda:gloo")
    without_mpi = started_by(*torchrun, "cpu:hvdlite,cuda:gloo", **WITHOUT_MPI)
    for ended in (ours, without_mpi):
        assert ended.returncode == 0, ended.stdout + ended.stderr
    theirs, results = came_to(gloo.stdout), came_to(ours.stdout)
    assert results == came_to(without_mpi.stdout)
    assert results.keys() == theirs.keys() and len(results) == 15
    assert {name: float(v) for name, v in results.items()} == pytest.approx(
        {name: float(v) for name, v in theirs.items()}, rel=1e-5
    )


@pytest.mark.parametrize("launch", [("hvdliterun", "-n", "3"), (*TORCHRUN, "2")], ids=" ".join)
def test_futures_that_many_threads_look_at_fail_only_if_the_call_did(launch):
    """Over MPI, and by sockets where there is no MPI."""
    env = WITHOUT_MPI if launch[0] == "torchrun" else {}
    ended = started_by(*launch, str(SCRIPTS / "torch_futures.py"), "1000", **env)
    said = re.findall(r"CALLS 1000 on rank \d: (\d+) problems", ended.stdout)
    assert said == ["0"] * int(launch[-1]) and ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("how", ["gloo", "cpu:gloo", "no backend", "a mesh"])
def test_a_program_that_names_gloo_runs_on_hvdlite_if_asked_to(how):
    """In a job of torchrun; HVDLITE_AS_GLOO=0 is a program without hvdlite."""
    line = str(SCRIPTS / "torch_as_gloo.py"), how
    for asked in ("1", "0") if how == "gloo" else ("1",):
        ended = started_by(*TORCHRUN, "2", *line, **WITHOUT_MPI, HVDLITE_AS_GLOO=asked)
        by = re.findall(r"MOVED BY (\w+)", ended.stdout)
        assert by == ["hvdlite" if asked == "1" else "gloo"] * 2, ended.stdout + ended.stderr
        assert ended.stderr.count("gloo is hvdlite") == int(asked)


def test_the_launcher_puts_hvdlite_in_the_place_of_gloo():
    ended = started_by(
        "hvdliterun", "--as-gloo", "-n", "3", str(SCRIPTS / "torch_as_gloo.py"), "gloo"
    )
    assert ended.stdout.count("MOVED BY hvdlite") == 3, ended.stdout + ended.stderr


@pytest.mark.parametrize("name", ["Llama, Transformers", "compiled blocks"])
def test_sharded_models_say_what_they_say_with_gloo(name, tmp_path):
    """Two ranks have the halves of each layer."""
    pytest.importorskip("transformers")
    serving.make_llama(str(tmp_path))
    theirs, ours = (serving.run(name, each, 2, 8, str(tmp_path)) for each in serving.SYSTEMS)
    assert [found["by"] for found in theirs + ours] == ["gloo"] * 2 + ["hvdlite"] * 2
    assert ours[0]["said"] == ours[1]["said"] == theirs[0]["said"]
    if name == "compiled blocks":
        assert [found["collectives"] for found in ours] == [2 * serving.LAYERS] * 2


MEMBERS_ONLY = """
import torch, torch.distributed as dist
dist.init_process_group("hvdlite")
rank, size = dist.get_rank(), dist.get_world_size()
# No rank calls for a group that it is not in. PyTorch demands equally many groups on the members.
groups = []
for bit in (1, 2):
    pair = sorted({rank, rank ^ bit} & set(range(size)))
    groups.append((pair, dist.new_group(pair, use_local_synchronization=True)))
for _ in range(3):
    sums = [torch.full((4,), float(rank)) for _ in groups]
    works = [
        dist.all_reduce(t, group=group, async_op=True) for t, (_, group) in zip(sums, groups)
    ]
    for work, t, (pair, _) in zip(works, sums, groups):
        work.wait()
        assert t.tolist() == [sum(pair)] * 4, (rank, pair, t)
dist.barrier()
dist.destroy_process_group()
print(f"ALL RIGHT {rank}\\n", end="", flush=True)
"""


@pytest.mark.parametrize("launch", [("hvdliterun", "-n", "3"), (*TORCHRUN, "4")], ids=" ".join)
def test_groups_that_only_their_members_create(launch, tmp_path):
    """Over MPI and by sockets; of 3 ranks some have no partner."""
    (tmp_path / "pairs.py").write_text(MEMBERS_ONLY)
    env = WITHOUT_MPI if launch[0] == "torchrun" else {}
    ended = started_by(*launch, str(tmp_path / "pairs.py"), timeout=120, **env)
    assert ended.stdout.count("ALL RIGHT") == int(launch[-1]), ended.stdout + ended.stderr


DIES_WHILE_DELEGATED = """
import os, signal, sys, time
import torch, torch.distributed as dist, hvdlite.torch as hvd
from hvdlite.torch import delegate, tensors
hvd.init()
tensors.DELEGATED.add("cpu")
delegate.GROUPS["cpu"] = dist.ProcessGroupGloo  # in place of NCCL
hvd.allreduce(torch.ones(3))
mover = next(iter(delegate._agreements.made.values())).made
if hvd.rank() == 1 and sys.argv[1] == "before":
    os.kill(os.getpid(), signal.SIGKILL)
if hvd.rank() == 1:
    sys.modules["hvdlite.torch.mover"].move_by = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
begin = time.monotonic()
for _ in range(2):
    try:
        hvd.allreduce(torch.ones(3))
    except hvd.HvdliteError as error:
        print(f"RAISED {hvd.rank()} {error.ranks} {time.monotonic() - begin < 5}", flush=True)
os._exit(7)
"""


@pytest.mark.parametrize("when", ["before", "while"])
def test_a_death_while_another_library_moves_the_data_is_named(when, tmp_path):
    (tmp_path / "dies.py").write_text(DIES_WHILE_DELEGATED)
    ended = started_by("hvdliterun", "-n", "3", str(tmp_path / "dies.py"), when)
    raised = sorted(re.findall(r"RAISED .*", ended.stdout))
    assert raised == [f"RAISED {r} (1,) True" for r in (0, 0, 2, 2)], ended.stdout + ended.stderr


FAILS = """
import datetime, os, signal, sys, time
import torch, torch.distributed as dist
how = sys.argv[1]
limit = 3 if how == "frozen" else 60
dist.init_process_group("hvdlite", timeout=datetime.timedelta(seconds=limit))
rank, t = dist.get_rank(), torch.ones(1000)
group, everyone = dist.new_group([0, 2]), dist.new_group()
dist.all_reduce(t)
if rank == 1:
    time.sleep(0.3)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    t = torch.ones(999)
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
        print(f"RAISED {rank} {type(error).__name__} {seconds:.1f} s: {text}", flush=True)

if how == "frozen" and rank == 1:
    time.sleep(60)
else:
    tell_of(lambda: dist.all_reduce(t))
    for future in futures:
        tell_of(future.wait)
if how == "killed":
    tell_of(dist.group.WORLD.monitored_barrier)
if how == "mismatch":
    tell_of(lambda: dist.all_reduce(t, async_op=True).get_future().wait())
if how != "killed" and rank != 1:
    dist.all_reduce(t, group=group)
    print("GOES ON", rank, flush=True)
if how == "killed" or how == "frozen":
    os._exit(7)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    "how, who, text",
    [
        ("killed", "0000022222", "rank 1 .*(died|dead|gone|ended)"),
        ("frozen", "02", "Timed out waiting 3000 ms for"),
        ("mismatch", "001122", r"ranks disagree on the shape: .*rank 1: \(999,\)"),
    ],
)
def test_a_failure_is_an_error_on_every_rank(how, who, text, tmp_path):
    script = tmp_path / "fails.py"
    script.write_text(FAILS)
    ended = started_by("hvdliterun", "-n", "3", str(script), how)
    raised = re.findall(r"RAISED (\d) (\w+) (\S+) s: (.*)", ended.stdout)
    assert sorted(rank for rank, *_ in raised) == list(who), ended.stdout + ended.stderr
    for _, kind, seconds, told in raised:
        assert kind == "DistBackendError" and float(seconds) < 30 and re.search(text, told), told
    if how != "killed":
        assert sorted(re.findall("GOES ON (.)", ended.stdout)) == ["0", "2"]


AGAIN = """
import sys, threading, time, torch, torch.distributed as dist

dist.Backend.default_device_backend_map["cpu"] = "hvdlite"
for turn in range(3):
    dist.init_process_group(*["hvdlite"][turn:])
    assert dist.group.WORLD._get_backend(torch.device("cpu")).name() == "hvdlite"
    rank = dist.get_rank()
    if turn == 1 and rank == 0:
        threading.Timer(1, dist.distributed_c10d._abort_process_group).start()
        try:
            dist.all_reduce(torch.ones(4))
        except dist.DistBackendError as error:
            print("RAISED", error, flush=True)
    elif turn != 1:
        t = torch.ones(4)
        dist.all_reduce(t)
        print(f"CAME TO {rank}{turn} {t[0].item()}\\n", end="", flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()
    time.sleep(1 - rank)  # the store has what rank 0 told before
"""


def test_groups_are_made_anew_after_destroy_and_abort(tmp_path):
    script = tmp_path / "again.py"
    script.write_text(AGAIN)
    ended = started_by(*TORCHRUN, "2", str(script))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert came_to(ended.stdout) == dict.fromkeys(("00", "10", "02", "12"), "2.0")
    assert re.search(r"RAISED .*\(all_reduce\) was aborted on this rank", ended.stdout)


DEFAULT = """
import torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

dist.Backend.default_device_backend_map["cpu"] = "hvdlite"
for names in ([], ["cpu:hvdlite,cuda:gloo"]):
    dist.init_process_group(*names)
    rank = dist.get_rank()
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
    print(f"CAME TO {rank}{len(names)} {sharded.sum().full_tensor().item()}\\n", end="", flush=True)
    assert dist.group.WORLD._get_backend(torch.device("cpu")).name() == "hvdlite"
    dist.destroy_process_group()
"""


def test_a_program_that_names_no_backend_or_several_gets_it(tmp_path):
    """DistributedDataParallel, FSDP2 and DTensor find it, and PyTorch warns of nothing."""
    script = tmp_path / "default.py"
    script.write_text(DEFAULT)
    ended = started_by(*TORCHRUN, "2", str(script), OMP_NUM_THREADS="1")
    assert ended.returncode == 0, ended.stderr
    assert came_to(ended.stdout) == dict.fromkeys(("00", "10", "01", "11"), "6.0")
    assert "arning" not in ended.stderr, ended.stderr


SPAWNS = """
import sys, tempfile, time, torch, torch.distributed as dist, torch.multiprocessing as mp

def work(rank, size, fails, url):
    if sys.argv[1] == "spawn":
        from mpi4py import MPI  # as Lightning does: each process is the only rank of its MPI
    dist.init_process_group("hvdlite", rank=rank, world_size=size, init_method=url)
    pair, t = dist.new_group([0, size - 1]), torch.full((4,), 1.0 + rank)
    dist.all_reduce(t)
    if rank in (0, size - 1):
        dist.all_reduce(t, group=pair)
    if rank == 1:
        time.sleep(1)
        assert not fails
    dist.all_reduce(t)
    print(f"CAME TO {rank} {t[0].item()}\\n", end="", flush=True)
    if rank == 1:
        time.sleep(1)
    dist.destroy_process_group()

if __name__ == "__main__":
    args = 3, sys.argv[2] == "fails", f"file://{tempfile.mkdtemp()}/store"
    mp.start_processes(work, args, nprocs=3, start_method=sys.argv[1])
"""


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_a_program_may_start_its_ranks_itself(method, tmp_path):
    """No launcher tells them where they meet; a rank that ends first has not died."""
    script = tmp_path / "spawns.py"
    script.write_text(SPAWNS)
    ended = started_by("python", str(script), method, "goes well")
    assert ended.returncode == 0, ended.stderr
    assert came_to(ended.stdout) == dict.fromkeys("012", "30.0")
    assert "hvdlite" not in ended.stderr
    if method != "spawn":  # the same in the others
        return
    failed = started_by("python", str(script), method, "fails")
    assert failed.returncode == 1
    assert re.search("rank 1 left the job .*code 1|AssertionError", failed.stderr), failed.stderr


def test_without_a_compiler_the_error_says_what_to_do(tmp_path):
    code = "import torch.distributed as d; d.init_process_group('hvdlite')"
    env = {"CXX": "no-such-compiler", "HVDLITE_CACHE": str(tmp_path)}
    env.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    ended = started_by("python", "-c", code, **env)
    last = ended.stderr.strip().splitlines()[-1]
    assert "no compiler (no-such-compiler)" in last and "HVDLITE_CACHE" in last


def test_one_process_compiles_and_the_others_wait(tmp_path):
    """A compiler of ten lines, which tells how often it was called."""
    compiler = tmp_path / "compiler"
    compiler.write_text(
        f"#!/bin/sh\necho x >>{tmp_path}/calls\nsleep 1\n"
        'while [ "$1" != -o ]; do shift; done\n: >"$2"\n'
    )
    compiler.chmod(0o755)
    code = "from hvdlite.torch.backend import compiled; print(compiled.build(60).name)"
    env = {**os.environ, "CXX": str(compiler), "HVDLITE_CACHE": str(tmp_path / "cache")}
    started = [
        subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    names = {process.communicate(timeout=100)[0].strip() for process in started}
    assert len(names) == 1 and "torch" in names.pop()
    assert (tmp_path / "calls").read_text() == "x\n"
