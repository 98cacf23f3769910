"""Trains a softmax to read handwritten digits in a session, as scripts of TensorFlow 1 do.

    python examples/tensorflow_v1_hook.py               one process
    mpirun -n 2 python examples/tensorflow_v1_hook.py   two ranks, each with its part of the images

The lines that end in "# hvdlite" are all that many ranks take. Without them it is a script for one
process, which runs as well:

    grep -v '# hvdlite$' examples/tensorflow_v1_hook.py > one_process.py
"""

import argparse

import hvdlite.tensorflow as hvd  # hvdlite

# isort: split
import numpy as np
import tensorflow.compat.v1 as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def main():
    args = parse_args()
    tf.disable_eager_execution()
    rank, ranks = 0, 1
    hvd.init()  # hvdlite
    rank, ranks = hvd.rank(), hvd.size()  # hvdlite
    random = np.random.default_rng(args.seed + rank)

    (x, y), (x_held, y_held) = read_digits()
    x, y = x[rank::ranks], y[rank::ranks]

    images = tf.placeholder(tf.float32, [None, 64])
    labels = tf.placeholder(tf.int64, [None])
    logits = model(images)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    right = tf.reduce_sum(tf.cast(tf.equal(tf.argmax(logits, 1), labels), tf.float32))

    optimizer = tf.train.MomentumOptimizer(args.lr * ranks, 0.9)
    optimizer = hvd.DistributedOptimizer(optimizer)  # hvdlite
    step = tf.train.get_or_create_global_step()
    train = optimizer.minimize(tf.reduce_mean(losses), global_step=step)

    hooks = [tf.train.StopAtStepHook(last_step=args.steps // ranks)]
    hooks += [hvd.BroadcastGlobalVariablesHook(0)]  # hvdlite
    checkpoints = args.checkpoints if rank == 0 else None  # else ranks would overwrite each other's
    with tf.train.MonitoredTrainingSession(checkpoint_dir=checkpoints, hooks=hooks) as session:
        while not session.should_stop():
            some = random.integers(0, len(x), args.batch_size)
            session.run(train, {images: x[some], labels: y[some]})
            if session.should_stop():
                break
            count = session.run(right, {images: x_held, labels: y_held})
    if rank == 0:
        print(f"{args.steps // ranks} steps, accuracy {count / len(x_held):.4f}, ranks: {ranks}")


def parse_args():
    parser = argparse.ArgumentParser(description="Train a softmax in a session of TensorFlow 1.")
    add = parser.add_argument
    add(
        "--steps", type=int, default=600, help="of one process; fewer with more ranks (%(default)s)"
    )
    add("--batch-size", type=int, default=32, help="images a rank and step (%(default)s)")
    add("--lr", type=float, default=0.05, help="learning rate, times the ranks (%(default)s)")
    add("--seed", type=int, default=0, help="of the order (%(default)s)")
    add("--checkpoints", help="folder for rank 0's checkpoints, with which it also starts")
    return parser.parse_args()


def model(images):
    hidden = tf.get_variable("hidden", [64, 64], initializer=tf.glorot_uniform_initializer())
    top = tf.get_variable("top", [64, 10], initializer=tf.glorot_uniform_initializer())
    bias = tf.get_variable("bias", [10], initializer=tf.zeros_initializer())
    return tf.nn.relu(images @ hidden) @ top + bias


def read_digits():
    """Return scikit-learn's scans as rows of 64, and their labels: to train with, and held back."""
    digits = load_digits()
    x, x_held, y, y_held = train_test_split(
        digits.data / 16, digits.target, test_size=0.2, stratify=digits.target, random_state=0
    )
    return (x, y), (x_held, y_held)


if __name__ == "__main__":
    main()
