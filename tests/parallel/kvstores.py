"""What the tests of the kvstore share."""

import mxnet as mx
import numpy as np
from mxnet import gluon, nd
from nets import backward, batch_of, dense_net, joined_batch, weights
from optimizers import plain_trainer, sgd

import hvdlite as hvd

SHAPE = (2, 3)
KEYS = (3, "weight")  # Trainer's are ints, Module's strings


def filled(value, shape=SHAPE, context=None, dtype="float32"):
    return nd.full(shape, value, ctx=context, dtype=dtype)


def sum_of_ranks(size: int) -> int:
    """What everyone gets when each rank pushes its number plus one."""
    return size * (size + 1) // 2


def assert_all(array, value) -> None:
    np.testing.assert_array_equal(array.asnumpy(), np.full(array.shape, value))


def both_contexts(value):
    return [filled(value, context=mx.cpu(i)) for i in (0, 1)]


# ---- training by gluon.Trainer ----


def kv_trainer(net, optimizer=None, kvstore="dist_sync_mpi", **more):
    return gluon.Trainer(net.collect_params(), optimizer or sgd(), kvstore=kvstore, **more)


def train(net, trainer, batches, joined: bool = False) -> dict:
    """The sums of all ranks, divided by the rows of all ranks: as with dist_sync."""
    for step, rows in enumerate(batches):
        x = joined_batch(step, rows) if joined else batch_of(hvd.rank(), step, rows)
        backward(net, x)
        trainer.step(rows * hvd.size())
    return weights(net)


def expected_of(batches=(4, 4, 4), optimizer=None) -> dict:
    alone = dense_net()
    return train(alone, plain_trainer(alone, optimizer or sgd()), batches, joined=True)
