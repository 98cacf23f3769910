"""Trains a small convolutional net of Keras 3 to read handwritten digits, on any backend of Keras.

    python examples/keras_mnist.py                      one process
    mpirun -n 2 python examples/keras_mnist.py          two ranks, each with its part of the images
    KERAS_BACKEND=jax python examples/keras_mnist.py    or torch; without it, tensorflow

Only the lines that end in "# hvdlite" are needed for many ranks. Without them, the script runs in
one process:

    grep -v '# hvdlite$' examples/keras_mnist.py > one_process.py
"""

import argparse
import time

import hvdlite.keras as hvd  # hvdlite

# isort: split
import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def main():
    args = parse_args()
    rank, ranks = 0, 1
    hvd.init()  # hvdlite
    rank, ranks = hvd.rank(), hvd.size()  # hvdlite
    keras.utils.set_random_seed(args.seed + rank)

    (x, y), (x_held, y_held) = read_digits()
    # Equal parts, so that all ranks take the same number of steps.
    samples = len(x) // ranks * ranks
    x, y = x[rank:samples:ranks], y[rank:samples:ranks]

    net = lenet()
    optimizer = keras.optimizers.SGD(args.lr * ranks, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer)  # hvdlite
    net.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])

    callbacks = []
    callbacks += [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]  # hvdlite
    callbacks += [hvd.callbacks.MetricAverageCallback()]  # hvdlite
    callbacks += [hvd.callbacks.LearningRateWarmupCallback(args.lr * ranks, 3)]  # hvdlite
    start = time.perf_counter()
    net.fit(x, y, args.batch_size, args.epochs, verbose=2 * (rank == 0), callbacks=callbacks)
    seconds = time.perf_counter() - start

    right = np.sum(np.argmax(net.predict(x_held[rank::ranks], verbose=0), 1) == y_held[rank::ranks])
    right = hvd.allreduce(float(right), op=hvd.Sum)  # hvdlite
    if rank == 0:
        speed, backend = args.epochs * samples / seconds, keras.backend.backend()
        part = float(right) / len(x_held)
        print(f"{backend}: {speed:,.0f} images/s, accuracy {part:.4f}, ranks: {ranks}")


def parse_args():
    parser = argparse.ArgumentParser(description="Train a net of Keras to read handwritten digits.")
    add = parser.add_argument
    add("--epochs", type=int, default=12, help="passes over the images (%(default)s)")
    add("--batch-size", type=int, default=32, help="images of a rank in a step (%(default)s)")
    add("--lr", type=float, default=0.02, help="learning rate of one rank (%(default)s)")
    add("--seed", type=int, default=0, help="seed of all random numbers (%(default)s)")
    return parser.parse_args()


def lenet():
    return keras.Sequential([
        keras.Input((8, 8, 1)),
        layers.Conv2D(16, 3, padding="same", activation="relu"),
        layers.Conv2D(32, 3, activation="relu"),
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.Dropout(0.25),
        layers.Dense(64, activation="relu"),
        layers.Dense(10, activation="softmax"),
    ])  # fmt: skip


def read_digits():
    """Return scikit-learn's 8 x 8 scans and labels for training, and those for validation."""
    digits = load_digits()
    x, x_held, y, y_held = train_test_split(
        (digits.images[..., None] / 16).astype("float32"), digits.target,
        test_size=0.2, stratify=digits.target, random_state=0,
    )  # fmt: skip
    return (x, y), (x_held, y_held)


if __name__ == "__main__":
    main()
