"""Optimizers and trainers: hvdlite's, Gluon's with hvdlite's KVStore, and plain Gluon's."""

import mxnet as mx
import pytest
from mxnet import gluon

import hvdlite as hvd


def sgd(**more):
    return mx.optimizer.SGD(learning_rate=0.1, momentum=0.9, wd=0.01, **more)


def momentum_sgd(rate: float = 0.1):
    return mx.optimizer.SGD(learning_rate=rate, momentum=0.9)


BOTH, STORES = ("trainer", "optimizer"), ("store", "on store")
both_kinds = pytest.mark.parametrize("kind", BOTH)
every_kind = pytest.mark.parametrize("kind", [*BOTH, *STORES])


class OfStore(gluon.Trainer):
    """step() takes one rank's batch size, though a store's gradients are sums over all ranks."""

    def step(self, batch_size, ignore_stale_grad=False) -> None:
        super().step(batch_size * hvd.size(), ignore_stale_grad)


def make_trainer(kind: str, params, optimizer, **options):
    """Return a trainer of hvdlite, or Gluon's Trainer with hvdlite's optimizer or store.

    :param kind: "store": the Trainer updates the weights; "on store": the store does.
    """
    if kind == "optimizer":
        return gluon.Trainer(params, hvd.DistributedOptimizer(optimizer, **options), kvstore=None)
    if kind in STORES:
        on_store = kind == "on store"
        return OfStore(
            params, optimizer, kvstore="dist_sync_mpi", update_on_kvstore=on_store, **options
        )
    trainers = {"trainer": hvd.DistributedTrainer, "sharded": hvd.ShardedTrainer}
    return trainers[kind](params, optimizer, **options)


def plain_trainer(net, optimizer, **arguments):
    return gluon.Trainer(net.collect_params(), optimizer, arguments or None, kvstore=None)
