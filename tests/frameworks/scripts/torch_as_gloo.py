"""Use PyTorch's collectives; each argument is a way to name Gloo, or no backend."""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor


def run(how: str) -> None:
    if how == "no backend":
        dist.init_process_group()
    elif how == "a mesh":
        init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
    else:
        dist.init_process_group(how)
    rank, size = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (size,))
    assert dist.is_gloo_available() and "gloo" in dist.get_backend_config()
    assert how != "gloo" or dist.get_backend() == "gloo"

    t = torch.full((4,), rank + 1.0)
    with torch.profiler.profile() as seen:
        dist.all_reduce(t)
    if dist.get_backend() == "gloo":
        assert "gloo:all_reduce" in {event.name for event in seen.events()}
    assert t.tolist() == [size * (size + 1) / 2] * 4
    if dist.get_backend() == "gloo":  # PyTorch allows monitored_barrier only under this name
        dist.monitored_barrier(timeout=timedelta(seconds=30))
    pair = dist.new_group([0, 1], backend="gloo", timeout=timedelta(seconds=30))
    if rank < 2:
        dist.all_reduce(t, group=pair)
        dist.monitored_barrier(pair)

    store = dist.distributed_c10d._get_default_store()
    options = dist.ProcessGroupGloo._Options()
    options._timeout = timedelta(seconds=30)
    options._devices = [dist.ProcessGroupGloo.create_device(interface="lo")]
    for limit in (options, 30.0, timedelta(seconds=30)):
        direct = dist.ProcessGroupGloo(
            dist.PrefixStore(how + type(limit).__name__, store), rank, size, limit
        )
        direct.barrier().wait()
        assert direct.name() == dist.group.WORLD._get_backend(torch.device("cpu")).name()
        direct.create_device(interface="lo")  # as PyTorch's tests do

    parallel = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
    parallel(torch.full((2, 4), rank + 1.0)).sum().backward()
    assert parallel.module.weight.grad.tolist() == [[size + 1.0] * 4] * 4
    sharded = nn.Linear(8, 8)
    fully_shard(sharded, mesh=mesh)
    sharded(torch.ones(2, 8)).sum().backward()
    rows = distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])
    assert rows.full_tensor().tolist() == list(range(8))

    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": r} for r in range(size)]
    one = torch.sparse_coo_tensor([[rank]], [1.0], (size,), check_invariants=True)
    dist.all_reduce(one)  # hvdlite passes this call on to Gloo
    assert one.to_dense().tolist() == [1.0] * size

    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=20), dist.group.WORLD)
    dist.barrier()
    dist.destroy_process_group()
    # one write, because ranks share the output
    print(f"MOVED BY {backend.name()}\n", end="", flush=True)


for how in sys.argv[1:]:
    run(how)
