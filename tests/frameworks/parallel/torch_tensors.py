"""PyTorch batches and small models; each rank can also make the batches of all other ranks."""

import hashlib

import torch

import hvdlite.torch as hvd


def same_everywhere(*tensors) -> bool:
    """Return whether all ranks have the same bits."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return len(set(hvd.allgather_object(digest.digest()))) == 1


def multilayer(seed: int = 1, dtype=torch.float32) -> torch.nn.Module:
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4)]
    return torch.nn.Sequential(*layers).to(dtype)


def convolutional(seed: int = 1) -> torch.nn.Module:
    """Return a net whose convolution has weights in the channels_last memory format."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(8 * 6 * 6, 10),
    )


def batch_of(rank: int, step: int, shape=(4, 6)) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(100 * step + rank))


def joined_batch(step: int, shape=(4, 6)) -> torch.Tensor:
    return torch.cat([batch_of(r, step, shape) for r in range(hvd.size())])


def loss_of(model, batch) -> torch.Tensor:
    return model(batch).square().mean()


def train(model, optimizer, batches) -> None:
    for batch in batches:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()


def difference(model, other) -> float:
    pairs = zip(model.parameters(), other.parameters())
    return max(float((a - b).detach().abs().max()) for a, b in pairs)
