"""Process groups whose ranks change while their processes go on running."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch.distributed as dist
from jobs import MPI_SETTINGS
from places import WITHOUT_MPI
from torchft.coordination import LighthouseServer

SCRIPTS = Path(__file__).parent / "scripts"
REPLICAS = "first", "second", "victim", "new"
pytestmark = pytest.mark.timeout(200)


def started(*arguments: str, **env: str) -> subprocess.Popen:
    env = {**os.environ, **MPI_SETTINGS, **env}
    return subprocess.Popen(
        [sys.executable, *arguments], env=env,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def test_survivors_go_on_without_a_dead_rank_and_with_a_new_rank():
    """One rank is killed, a new rank joins, and another rank is left out later."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    line = str(SCRIPTS / "torch_rejoin.py"), str(store.port)
    ranks = [started(*line, str(number), **WITHOUT_MPI) for number in range(4)]
    said = [rank.communicate(timeout=150)[0] for rank in ranks]
    assert [f"ALL RIGHT {n}" in text for n, text in enumerate(said)] == [True, False, True, True], (
        "\n".join(said)
    )
    assert [rank.returncode for rank in ranks] == [0, -9, 0, 0]


def test_torchft_trains_on_without_a_dead_replica_and_updates_a_new_replica():
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    lighthouse = LighthouseServer(
        bind="127.0.0.1:0", min_replicas=2, join_timeout_ms=60_000, heartbeat_timeout_ms=5000
    )
    store.set("lighthouse", lighthouse.address())
    line = str(SCRIPTS / "torch_replica.py"), str(store.port)
    ranks = [started(*line, name, **WITHOUT_MPI) for name in REPLICAS]
    with ThreadPoolExecutor() as readers:  # read all pipes: torchft logs more than a pipe holds
        said = list(readers.map(lambda rank: rank.communicate(timeout=150)[0], ranks))
    lighthouse.shutdown()
    step = store.get("last").decode()
    assert [f"ALL RIGHT {name} {step} " in text for name, text in zip(REPLICAS, said)] == [
        True, True, False, True,
    ], "\n".join(said)  # fmt: skip
    assert [rank.returncode for rank in ranks] == [0, 0, -9, 0]


REFUSED = """
from datetime import timedelta
import torch
import torch.distributed as dist
import hvdlite.torch as hvd
from hvdlite.torch.backend import reconfigure
hvd.init()
store, limit = dist.HashStore(), timedelta(seconds=9)
try:
    reconfigure.join(store, 0, 1, limit)
except hvd.HvdliteError as error:
    print("REFUSED", error, flush=True)
assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()
"""


@pytest.mark.parametrize("how", ["can't leave an MPI job", "hvd.init() or another process group"])
def test_a_rank_that_cannot_leave_its_job_gets_an_error_when_it_joins_another(how, tmp_path):
    (tmp_path / "refused.py").write_text(REFUSED)
    by_mpi = ["-m", "hvdlite.launch", "-n", "2", sys.executable] if "MPI" in how else []
    env = {} if by_mpi else WITHOUT_MPI
    run = started(*by_mpi, str(tmp_path / "refused.py"), **env)
    text = run.communicate(timeout=100)[0]
    assert text.count("REFUSED") == (2 if by_mpi else 1) and how in text, text
    assert run.returncode == 0, text


RECONFIGURED = """
import sys
from datetime import timedelta
import torch, torch.distributed as dist
rank, limit = int(sys.argv[2]), timedelta(seconds=60)
store = dist.FileStore(sys.argv[1], 2)
where = {"store": store, "rank": rank, "world_size": 2, "timeout": limit}
dist.init_process_group("hvdlite", enable_reconfigure=True, **where)
t = torch.ones(1)
try:
    dist.all_reduce(t)
except dist.DistBackendError as error:
    assert "call reconfigure first" in str(error), error
for uuid in (7, 8):
    store.set(f"{uuid} {rank}", dist._get_reconfigure_handle())
    handles = [store.get(f"{uuid} {r}").decode() for r in range(2)]
    dist._reconfigure(uuid, handles if uuid == 7 else set(handles)).wait()
    dist.all_reduce(t)
try:
    dist._reconfigure(8, [dist._get_reconfigure_handle()])
except RuntimeError as error:
    assert "uuid 8 was already used" in str(error), error
    print("REFUSED", flush=True)
print("ALL RIGHT", t.item(), flush=True)
"""


@pytest.mark.skipif(not hasattr(dist, "_reconfigure"), reason="needs PyTorch 2.14")
def test_reconfigure_gives_ranks_to_a_group_without_ranks(tmp_path):
    (tmp_path / "ranks.py").write_text(RECONFIGURED)
    line = str(tmp_path / "ranks.py"), str(tmp_path / "store")
    ranks = [started(*line, str(rank), **WITHOUT_MPI) for rank in range(2)]
    said = [rank.communicate(timeout=150)[0] for rank in ranks]
    assert ["REFUSED\nALL RIGHT 4.0" in text for text in said] == [True] * 2, "\n".join(said)
