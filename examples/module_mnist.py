"""Trains the net of mnist.py as a symbolic Module, MXNet's older interface, with any kvstore.

    python examples/module_mnist.py                                   one process
    mpirun -n 2 python examples/module_mnist.py                       two ranks over MPI
    hvdliterun -n 2 -s 2 python examples/module_mnist.py --kvstore dist_sync
                                                                      MXNet's own servers

The script is written for MXNet's servers. Only the import of hvdlite is added, which registers the
kvstore dist_sync_mpi with MXNet.
"""

import logging
import time

import hvdlite  # noqa: F401

# isort: split
import mxnet as mx
import numpy as np
from mnist import options, read_images


def main():
    parser = options("Train a small convolutional net by Module and a kvstore.")
    kvstores = "dist_sync_mpi, or dist_sync: MXNet's own servers (%(default)s)"
    parser.add_argument("--kvstore", default="dist_sync_mpi", help=kvstores)
    args = parser.parse_args()
    kv = mx.kv.create(args.kvstore)
    logging.basicConfig(level=logging.WARNING if kv.rank else logging.INFO, format="%(message)s")
    mx.random.seed(args.seed + kv.rank)
    np.random.seed(args.seed + kv.rank)

    train_set, held_back = read_images(args.data_dir)
    images, labels = train_set[: len(train_set) // kv.num_workers * kv.num_workers]
    batches = mx.io.NDArrayIter(
        images[kv.rank :: kv.num_workers], labels[kv.rank :: kv.num_workers],
        args.batch_size, shuffle=True, last_batch_handle="discard",
    )  # fmt: skip
    steps = args.epochs * (batches.num_data // args.batch_size)
    schedule = mx.lr_scheduler.CosineScheduler(
        steps, args.lr * kv.num_workers, warmup_steps=steps // 10
    )

    module = mx.mod.Module(lenet())
    start = time.perf_counter()
    module.fit(
        batches,
        num_epoch=args.epochs,
        kvstore=kv,
        initializer=mx.init.Xavier(),
        optimizer="sgd",
        optimizer_params={
            "learning_rate": args.lr * kv.num_workers,
            "momentum": 0.9,
            "lr_scheduler": schedule,
        },
    )
    seconds = time.perf_counter() - start

    if kv.rank == 0:  # all ranks have the same weights
        ((_, accuracy),) = module.score(mx.io.NDArrayIter(*held_back[:], args.batch_size), "acc")
        speed = steps * args.batch_size * kv.num_workers / seconds
        print(f"{kv.type}: {speed:,.0f} images/s, accuracy {accuracy:.4f}, {seconds:.1f} s, "
              f"ranks: {kv.num_workers}")  # fmt: skip


def lenet():
    x = mx.sym.var("data") / 255
    for filters in (16, 32):
        x = mx.sym.Convolution(x, num_filter=filters, kernel=(5, 5))
        x = mx.sym.Activation(x, act_type="relu")
        x = mx.sym.Pooling(x, pool_type="max", kernel=(2, 2), stride=(2, 2))
        x = mx.sym.Dropout(x, p=0.25)
    x = mx.sym.FullyConnected(x, num_hidden=128)
    x = mx.sym.Activation(x, act_type="relu")
    x = mx.sym.Dropout(x, p=0.5)
    x = mx.sym.FullyConnected(x, num_hidden=10)
    return mx.sym.SoftmaxOutput(x, name="softmax")


if __name__ == "__main__":
    main()
