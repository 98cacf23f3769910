"""Programs for torchrun, as users write them: torch_programs.py BACKEND.

Nothing of hvdlite is imported. Rank 0 prints what training has come to.
"""

import sys

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


def ddp() -> float:
    model = DistributedDataParallel(layers(), bucket_cap_mb=0.004)
    return train(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)).item()


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
    for program in (ddp, fsdp, dtensor, ring):
        result = program()
        if dist.get_rank() == 0:
            print(f"CAME TO {program.__name__} {result!r}", flush=True)
    dist.destroy_process_group()
