"""A training script for GPUs, as scripts for Horovod are written; it runs unedited on hvdlite.

Rank 0 resumes from a checkpoint in each epoch but the first, and broadcasts what it has loaded.
"""

import argparse

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset, distributed

import hvdlite.torch as hvd

BATCH = 12  # rows of all ranks together


def dataset() -> TensorDataset:
    rows = torch.randn(48, 10, generator=torch.Generator().manual_seed(7))
    return TensorDataset(rows, (rows.sum(1) > 0).long())


def network() -> torch.nn.Module:
    layers = [torch.nn.Linear(10, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2)]
    return torch.nn.Sequential(*layers)


def optimizer_of(model, name: str) -> torch.optim.Optimizer:
    if name == "adam":
        return torch.optim.Adam(model.parameters(), lr=0.02)
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--optimizer", default="sgd")
    parser.add_argument("--fp16-allreduce", action="store_true")
    parser.add_argument("--checkpoint", required=True)
    args = parser.parse_args()

    hvd.init()
    torch.manual_seed(hvd.rank())  # each rank makes other weights, which the broadcast replaces
    args.cuda = torch.cuda.is_available()
    assert args.cuda and hvd.nccl_built() and hvd.cuda_built()
    torch.cuda.set_device(hvd.local_rank())
    torch.cuda.manual_seed(42)

    data = dataset()
    sampler = distributed.DistributedSampler(
        data, num_replicas=hvd.size(), rank=hvd.rank(), shuffle=False
    )
    loader = DataLoader(data, batch_size=BATCH // hvd.size(), sampler=sampler)
    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none

    for epoch in range(args.epochs):
        model = network()
        model.cuda()
        optimizer = optimizer_of(model, args.optimizer)
        if epoch and hvd.rank() == 0:
            saved = torch.load(args.checkpoint, weights_only=False)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        optimizer = hvd.DistributedOptimizer(
            optimizer, named_parameters=model.named_parameters(), compression=compression
        )
        model.train()
        for batch, (rows, labels) in enumerate(loader):
            rows, labels = rows.cuda(), labels.cuda()
            optimizer.zero_grad()
            loss = F.cross_entropy(model(rows), labels)
            loss.backward()
            optimizer.step()
            average = hvd.allreduce(loss.detach(), name="loss")
            if hvd.rank() == 0:
                print(f"LOSS {epoch} {batch} {average.item():.6f}", flush=True)
        if hvd.rank() == 0:
            torch.save(
                {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, args.checkpoint
            )


if __name__ == "__main__":
    main()
