"""Trains a small convolutional PyTorch net to read handwritten digits, on any number of ranks.

    python examples/pytorch_mnist.py                    one process
    mpirun -n 2 python examples/pytorch_mnist.py        two ranks, each with its part of the images

Only the lines that end in "# hvdlite" are needed for many ranks. Without them, the script runs in
one process:

    grep -v '# hvdlite$' examples/pytorch_mnist.py > one_process.py
"""

import argparse
import time

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import hvdlite.torch as hvd  # hvdlite


def main():
    args = parse_args()
    rank, ranks = 0, 1
    hvd.init()  # hvdlite
    rank, ranks = hvd.rank(), hvd.size()  # hvdlite
    torch.manual_seed(args.seed + rank)
    torch.set_num_threads(max(1, torch.get_num_threads() // ranks))

    train_set, held_back = read_digits()
    sampler = DistributedSampler(train_set, ranks, rank, seed=args.seed)
    batches = DataLoader(train_set, args.batch_size, sampler=sampler)
    own = Subset(held_back, range(rank, len(held_back), ranks))

    net = lenet()
    optimizer = torch.optim.SGD(net.parameters(), args.lr * ranks, momentum=0.9)
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)  # hvdlite
    optimizer = hvd.DistributedOptimizer(optimizer, net.named_parameters())  # hvdlite
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, args.lr * ranks, total_steps=args.epochs * len(batches), pct_start=0.1
    )

    start = time.perf_counter()
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for images, labels in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(images), labels).backward()
            optimizer.step()
            schedule.step()
    seconds = time.perf_counter() - start

    part = accuracy(net, DataLoader(own, args.batch_size))
    if rank == 0:
        speed = args.epochs * len(train_set) / seconds
        print(f"{speed:,.0f} images/s, accuracy {part:.4f}, {seconds:.1f} s, ranks: {ranks}")


def parse_args():
    parser = argparse.ArgumentParser(description="Train a small net to read handwritten digits.")
    add = parser.add_argument
    add("--epochs", type=int, default=20, help="passes over the images (%(default)s)")
    add("--batch-size", type=int, default=32, help="images of a rank in a step (%(default)s)")
    add("--lr", type=float, default=0.03, help="learning rate of one rank (%(default)s)")
    add("--seed", type=int, default=0, help="seed of all random numbers (%(default)s)")
    return parser.parse_args()


def lenet():
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 2 * 2, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 10),
    )


def accuracy(net, batches):
    """Return the share of all ranks' images that the net reads correctly."""
    net.eval()
    counts = torch.zeros(2)
    with torch.no_grad():
        for images, labels in batches:
            right = (net(images).argmax(1) == labels).sum()
            counts += torch.tensor([right, len(labels)])
    counts = hvd.allreduce(counts, op=hvd.Sum, name="accuracy")  # hvdlite
    return float(counts[0] / counts[1])


def read_digits():
    """Return scikit-learn's 1,797 scans of 8 x 8 pixels: 4/5 for training, 1/5 for testing."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    x, x_held, y, y_held = train_test_split(
        images, torch.tensor(digits.target), test_size=0.2, stratify=digits.target, random_state=0
    )
    return TensorDataset(x, y), TensorDataset(x_held, y_held)


if __name__ == "__main__":
    main()
