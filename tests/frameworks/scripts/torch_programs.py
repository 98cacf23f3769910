"""Programs for torchrun that import nothing of hvdlite: torch_programs.py BACKEND.

Rank 0 prints the result of each program.
"""

import sys
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def layers() -> nn.Module:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.BatchNorm1d(32)) for _ in range(3)]
    return nn.Sequential(*blocks, nn.Linear(32, 10))


def batches():
    x = torch.randn(240, 32, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(x, x[:, :10].argmax(1))
    sampler = DistributedSampler(data, seed=0)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        yield from DataLoader(data, batch_size=20, sampler=sampler)


def train(model, optimizer) -> torch.Tensor:
    for x, y in batches():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    total = loss.detach().clone()
    dist.all_reduce(total)
    return total


def sgd(model) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def ddp(hook=None, bucket_cap_mb=0.004, **options) -> float:
    model = DistributedDataParallel(layers(), bucket_cap_mb=bucket_cap_mb, **options)
    if hook:
        model.register_comm_hook(*hook)
    return train(model, sgd(model)).item()


def ddp_static() -> float:
    return ddp(static_graph=True)


def ddp_view() -> float:
    return ddp(gradient_as_bucket_view=True)


def ddp_half() -> float:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    return ddp((None, fp16_compress_hook))


def ddp_power_sgd() -> float:
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import (
        PowerSGDState,
        powerSGD_hook,
    )

    # The hook starts collectives in callbacks. Only with one bucket is their order equal on all
    # ranks.
    return ddp((PowerSGDState(None, 2, start_powerSGD_iter=3), powerSGD_hook), bucket_cap_mb=25)


class Branches(nn.Module):
    """Use one of two layers in each step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers, self.steps = nn.ModuleList([nn.Linear(32, 10), nn.Linear(32, 10)]), 0

    def forward(self, x):
        self.steps += 1
        return self.layers[self.steps % 2](x)


def ddp_unused() -> float:
    model = DistributedDataParallel(Branches(), find_unused_parameters=True)
    return train(model, sgd(model)).item()


def ddp_join() -> float:
    model = DistributedDataParallel(layers()[0][0])
    optimizer = sgd(model)
    with model.join():
        for _ in range(3 + 2 * dist.get_rank()):
            optimizer.zero_grad()
            model(torch.ones(4, 32)).square().sum().backward()
            optimizer.step()
    return sum(p.sum() for p in model.parameters()).item()


def zero() -> float:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(layers())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-2)
    result = train(model, optimizer)
    optimizer.consolidate_state_dict(0)
    return result.item()


def fsdp_1() -> float:
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(layers(), device_id=torch.device("cpu"))
    return train(model, torch.optim.Adam(model.parameters(), lr=1e-2)).item()


def fsdp() -> float:
    from torch.distributed.fsdp import fully_shard

    model = layers()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return train(model, torch.optim.AdamW(model.parameters(), lr=1e-2)).item()


def dtensor() -> float:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    a = distribute_tensor(torch.arange(24.0).reshape(6, 4), mesh, [Shard(0)])
    b = distribute_tensor(torch.arange(20.0).reshape(4, 5), mesh, [Shard(1)])
    product = (a @ b.redistribute(mesh, [Replicate()])).redistribute(mesh, [Shard(1)])
    return (product.full_tensor().sum() + product.sum().full_tensor()).item()


def tensor_parallel() -> float:
    from torch.distributed.tensor import parallel

    torch.manual_seed(0)
    plan = {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()}
    model = nn.Sequential(nn.Linear(32, 60), nn.ReLU(), nn.Linear(60, 10))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = parallel.parallelize_module(model, mesh, plan)
    optimizer, x = sgd(model), torch.randn(16, 32)
    for _ in range(5):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), x[:, :10].argmax(1))
        loss.backward()
        optimizer.step()
    return loss.item()


def pipeline() -> float:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    torch.manual_seed(0)
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    model = [nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(last + 1)][rank]
    stage = PipelineStage(model, rank, last + 1, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 4, loss_fn=nn.functional.mse_loss)
    optimizer, x, y = sgd(model), torch.randn(8, 16), torch.randn(8, 16)
    for _ in range(5):
        losses = []
        optimizer.zero_grad()
        how = {"target": y, "losses": losses} if rank == last else {}
        schedule.step(*[x] * (rank == 0), **how)
        optimizer.step()
    loss = torch.stack(losses).mean().detach() if losses else torch.zeros(())
    dist.broadcast(loss, last)
    return loss.item()


def checkpoint() -> float:
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import get_model_state_dict
    from torch.distributed.fsdp import fully_shard

    model = layers()
    fully_shard(model)
    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder)
    saved, sums = get_model_state_dict(model), []
    checkpoint.save(saved, checkpoint_id=folder[0] + "/a")
    checkpoint.async_save(saved, checkpoint_id=folder[0] + "/b").result()
    for name in ("/a", "/b"):
        train(model, sgd(model))
        changed = get_model_state_dict(model)
        checkpoint.load(changed, checkpoint_id=folder[0] + name)
        weights = [each for each in changed.values() if hasattr(each, "full_tensor")]
        sums.append(sum(each.full_tensor().double().sum() for each in weights))
    assert sums[0] == sums[1]
    return sums[0].item()


def ring() -> float:
    rank, size = dist.get_rank(), dist.get_world_size()
    sent, got = torch.full((3,), float(rank)), torch.zeros(3)
    calls = [dist.P2POp(dist.isend, sent, (rank + 1) % size)]
    calls.append(dist.P2POp(dist.irecv, got, (rank - 1) % size))
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    dist.all_reduce(got)
    return got.sum().item()


if __name__ == "__main__":
    dist.init_process_group(sys.argv[1])
    plain = ddp, ddp_static, ddp_view, ddp_half, ddp_power_sgd, ddp_unused, ddp_join, zero
    for program in (*plain, fsdp_1, fsdp, dtensor, tensor_parallel, pipeline, checkpoint, ring):
        result = program()
        if dist.get_rank() == 0:
            print(f"CAME TO {program.__name__} {result!r}", flush=True)
    dist.destroy_process_group()
