"""hvdlite as PyTorch's backend: unchanged programs for torchrun, and compilation of the backend."""

import re

import pytest
from jobs import TESTS, TORCHRUN, came_to, started_by
from places import WITHOUT_MPI

from benchmarks import serving

pytestmark = pytest.mark.timeout(600)  # each program has a shorter time limit
SCRIPTS = TESTS / "frameworks" / "scripts"
PROGRAMS = str(SCRIPTS / "torch_programs.py")


def test_torch_programs_give_the_same_result_as_with_gloo():
    """hvdliterun over MPI and torchrun without MPI give equal digits; Gloo's may differ slightly.

    The exit status of the run with Gloo is ignored: PyTorch once aborted after all results.
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
def test_futures_used_by_many_threads_fail_only_if_their_call_failed(launch):
    """With hvdliterun the ranks use MPI, with torchrun they use sockets."""
    env = WITHOUT_MPI if launch[0] == "torchrun" else {}
    ended = started_by(*launch, str(SCRIPTS / "torch_futures.py"), "1000", **env)
    said = re.findall(r"CALLS 1000 on rank \d: (\d+) problems", ended.stdout)
    assert said == ["0"] * int(launch[-1]) and ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("asked", ["1", "0"])
def test_a_program_that_names_gloo_runs_on_hvdlite_with_as_gloo(asked):
    """HVDLITE_AS_GLOO=1 asks for hvdlite; with 0 the program uses Gloo."""
    hows = ["gloo", "cpu:gloo", "no backend", "a mesh"] if asked == "1" else ["gloo"]
    line = str(SCRIPTS / "torch_as_gloo.py"), *hows
    ended = started_by(*TORCHRUN, "2", *line, **WITHOUT_MPI, HVDLITE_AS_GLOO=asked)
    by = re.findall(r"MOVED BY (\w+)", ended.stdout)
    assert by == ["hvdlite" if asked == "1" else "gloo"] * 2 * len(hows), (
        ended.stdout + ended.stderr
    )
    assert ended.stderr.count("gloo is hvdlite") == int(asked)


def test_the_launchers_option_as_gloo_replaces_gloo_by_hvdlite():
    ended = started_by(
        "hvdliterun",
        "--as-gloo",
        "-n",
        "3",
        str(SCRIPTS / "torch_as_gloo.py"),
        "gloo",
    )
    assert ended.stdout.count("MOVED BY hvdlite") == 3, ended.stdout + ended.stderr


FORKS = """
import sys, torch, torch.distributed as dist, torch.multiprocessing as mp

def run(rank, path):
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    t = torch.ones(1)
    dist.all_reduce(t)
    assert t.item() == 2 and dist.get_backend() == "gloo"
    by = dist.group.WORLD._get_backend(torch.device("cpu")).name()
    dist.destroy_process_group()
    print(f"MOVED BY {by}\\n", end="", flush=True)

if __name__ == "__main__":
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/a", rank=0, world_size=1)
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()
    for how in ("fork", "spawn"):
        mp.start_processes(run, (f"{sys.argv[1]}/{how}",), 2, start_method=how)
"""


def test_children_that_a_rank_forks_use_gloo_itself(tmp_path):
    """Gloo, unlike hvdlite, works in a forked child, and the program has asked for Gloo."""
    (tmp_path / "forks.py").write_text(FORKS)
    line = "python", str(tmp_path / "forks.py"), str(tmp_path)
    ended = started_by(*line, **WITHOUT_MPI, HVDLITE_AS_GLOO="1")
    moved = re.findall(r"MOVED BY (\w+)", ended.stdout)
    assert moved == ["gloo", "gloo", "hvdlite", "hvdlite"], ended.stdout + ended.stderr
    assert ended.stderr.count("a rank uses PyTorch's own gloo") == 1 and ended.returncode == 0


@pytest.mark.parametrize("name", ["Llama, Transformers", "compiled blocks"])
def test_sharded_models_give_the_same_output_as_with_gloo(name, tmp_path):
    """Each of two ranks has half of each layer."""
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
# Only members call new_group. PyTorch requires the same number of groups on all members.
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
def test_only_the_members_of_a_group_need_to_make_the_group(launch, tmp_path):
    """With hvdliterun the ranks use MPI, with torchrun they use sockets."""
    (tmp_path / "pairs.py").write_text(MEMBERS_ONLY)
    env = WITHOUT_MPI if launch[0] == "torchrun" else {}
    ended = started_by(*launch, str(tmp_path / "pairs.py"), timeout=120, **env)
    assert ended.stdout.count("ALL RIGHT") == int(launch[-1]), ended.stdout + ended.stderr


SPAWNS = """
import sys, tempfile, time, torch, torch.distributed as dist, torch.multiprocessing as mp

def work(rank, size, how, url):
    if how in ("spawn", "fails"):
        from mpi4py import MPI  # as Lightning does: each process is the only rank of its MPI
    dist.init_process_group("hvdlite", rank=rank, world_size=size, init_method=url)
    pair, t = dist.new_group([0, size - 1]), torch.full((4,), 1.0 + rank)
    dist.all_reduce(t)
    if rank in (0, size - 1):
        dist.all_reduce(t, group=pair)
    if rank == 1:
        time.sleep(1)
        assert how != "fails"
    dist.all_reduce(t)
    print(f"CAME TO {how}{rank} {t[0].item()}\\n", end="", flush=True)
    if rank == 1:
        time.sleep(1)
    dist.destroy_process_group()

if __name__ == "__main__":
    for how in sys.argv[1:]:
        args = 3, how, f"file://{tempfile.mkdtemp()}/store"
        mp.start_processes(work, args, nprocs=3, start_method=how.replace("fails", "spawn"))
"""


def test_ranks_that_a_program_starts_itself_form_a_job(tmp_path):
    """No launcher starts the ranks. A rank that ends before the others does not count as dead."""
    script, hows = tmp_path / "spawns.py", ["fork", "spawn", "forkserver"]
    script.write_text(SPAWNS)
    ended = started_by("python", str(script), *hows)
    assert ended.returncode == 0, ended.stderr
    ends = {f"{how}{rank}": "30.0" for how in hows for rank in range(3)}
    assert came_to(ended.stdout) == ends
    assert "hvdlite" not in ended.stderr
    failed = started_by("python", str(script), "fails")
    assert failed.returncode == 1
    assert re.search("rank 1 left the job .*code 1|AssertionError", failed.stderr), failed.stderr


def test_without_a_compiler_the_error_says_what_to_do(tmp_path):
    code = "import torch.distributed as d; d.init_process_group('hvdlite')"
    env = {"CXX": "no-such-compiler", "HVDLITE_CACHE": str(tmp_path)}
    env.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    ended = started_by("python", "-c", code, **env)
    last = ended.stderr.strip().splitlines()[-1]
    assert "no compiler (no-such-compiler)" in last and "HVDLITE_CACHE" in last
