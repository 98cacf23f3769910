"""Trains a small convolutional net to read handwritten digits, on any number of processes.

    python examples/mnist.py                    one process
    mpirun -n 2 python examples/mnist.py        two ranks, each with its own part of the images
    python examples/mnist.py --help             epochs, batch size, MNIST's own files, ...

Only the lines that end in "# hvdlite" are needed for many ranks. Without them, the script runs in
one process:

    grep -v '# hvdlite$' examples/mnist.py > one_process.py
"""

import argparse
import signal
import time
from pathlib import Path

import hvdlite as hvd  # hvdlite

# isort: split
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tqdm import tqdm


def main():
    args = options("Train a small convolutional net to read handwritten digits.").parse_args()
    rank, ranks = 0, 1
    hvd.init()  # hvdlite
    rank, ranks = hvd.rank(), hvd.size()  # hvdlite
    mx.random.seed(args.seed + rank)
    np.random.seed(args.seed + rank)

    train_set, held_back = read_images(args.data_dir)
    # equal parts, so that all ranks take the same number of steps
    train_set = train_set.take(len(train_set) // ranks * ranks)
    train_set = train_set.shard(ranks, rank)  # hvdlite
    held_back = held_back.shard(ranks, rank)  # hvdlite
    batches = gluon.data.DataLoader(train_set, args.batch_size, shuffle=True)

    net = lenet()
    net.initialize(mx.init.Xavier())
    hvd.broadcast_parameters(net.collect_params())  # hvdlite

    start = time.perf_counter()
    with progress_bar(args.epochs * len(batches), hidden=rank > 0) as bar:
        train(net, batches, args.epochs, args.lr * ranks, bar)
    seconds = time.perf_counter() - start

    part = accuracy(net, gluon.data.DataLoader(held_back, args.batch_size))
    if rank == 0:
        speed = args.epochs * len(train_set) * ranks / seconds
        print(f"{speed:,.0f} images/s, accuracy {part:.4f}, {seconds:.1f} s, ranks: {ranks}")


def options(description, epochs=20):
    """Return a parser with the options that all examples with MNIST have."""
    parser = argparse.ArgumentParser(description=description)
    add = parser.add_argument
    add("--epochs", type=count, default=epochs, help="passes over the images (%(default)s)")
    add("--batch-size", type=count, default=32, help="images of a rank in a step (%(default)s)")
    add("--lr", type=float, default=0.03, help="learning rate of one rank (%(default)s)")
    add("--seed", type=int, default=0, help="seed of all random numbers (%(default)s)")
    add("--data-dir", type=Path, help="folder of MNIST (without it: scikit-learn's 1,797 digits)")
    return parser


def count(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def lenet():
    net = nn.HybridSequential()
    net.add(
        nn.HybridLambda(lambda F, x: F.cast(x, "float32") / 255),
        nn.Conv2D(16, kernel_size=5, activation="relu"),
        nn.MaxPool2D(),
        nn.Dropout(0.25),
        nn.Conv2D(32, kernel_size=5, activation="relu"),
        nn.MaxPool2D(),
        nn.Dropout(0.25),
        nn.Dense(128, activation="relu"),
        nn.Dropout(0.5),
        nn.Dense(10),
    )
    net.hybridize()
    return net


def train(net, batches, epochs, lr, bar):
    steps = epochs * len(batches)
    schedule = mx.lr_scheduler.CosineScheduler(steps, lr, warmup_steps=steps // 10)
    optimizer = mx.optimizer.SGD(momentum=0.9, lr_scheduler=schedule)
    optimizer = hvd.DistributedOptimizer(optimizer)  # hvdlite
    trainer = gluon.Trainer(net.collect_params(), optimizer, kvstore=None)
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    for _ in range(epochs):
        for images, labels in batches:
            with autograd.record():
                loss = loss_of(net(images), labels)
            loss.backward()
            trainer.step(len(labels))
            bar.set_postfix_str(f"loss {loss.mean().asscalar():.3f}", refresh=False)
            bar.update()
    mx.nd.waitall()


def accuracy(net, batches):
    """Return the share of all ranks' images that the net reads correctly."""
    metric = mx.metric.Accuracy()
    for images, labels in batches:
        metric.update(labels, net(images))
    counts = mx.nd.array([metric.sum_metric, metric.num_inst])
    counts = hvd.allreduce(counts, op=hvd.Sum, name="accuracy")  # hvdlite
    right, seen = counts.asnumpy()
    return right / seen


def progress_bar(steps, hidden):
    """Return a bar on /dev/tty, because mpirun reads stderr. It is invisible without a terminal."""
    try:
        terminal = None if hidden else open("/dev/tty", "w")  # noqa: SIM115 (the bar closes it)
    except OSError:  # there is no terminal, as in a batch job or a test
        terminal = None
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # under `stty tostop` a write would stop the rank
    return tqdm(total=steps, unit="step", file=terminal, disable=not terminal, leave=False,
                dynamic_ncols=True)  # fmt: skip


def read_images(folder):
    """Return images for training and for testing; gluon downloads MNIST's files if missing."""
    if folder is None:
        return read_digits()
    parts = [gluon.data.vision.MNIST(str(folder), train)[:] for train in (True, False)]
    return [gluon.data.ArrayDataset(x.asnumpy().transpose(0, 3, 1, 2), y) for x, y in parts]


def read_digits():
    """Return scikit-learn's 8 x 8 scans in MNIST's format: 20 x 20 pixels with a border of 4."""
    digits = load_digits()
    scans = mx.nd.array(digits.images[..., None] * (255 / 16)).astype("uint8")
    scans = mx.nd.image.resize(scans, size=20, interp=2).asnumpy()  # 2: bicubic
    images = np.pad(scans, ((0, 0), (4, 4), (4, 4), (0, 0))).transpose(0, 3, 1, 2)
    x, x_held, y, y_held = train_test_split(
        images, digits.target, test_size=0.2, stratify=digits.target, random_state=0
    )
    return gluon.data.ArrayDataset(x, y), gluon.data.ArrayDataset(x_held, y_held)


if __name__ == "__main__":
    main()
