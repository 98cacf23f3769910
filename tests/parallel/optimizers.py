"""Optimizers, and the trainers that take them: hvdlite's, and one for a process alone."""

import mxnet as mx
import pytest
from mxnet import gluon

import hvdlite as hvd


def sgd(**more):
    return mx.optimizer.SGD(learning_rate=0.1, momentum=0.9, wd=0.01, **more)


def momentum_sgd(rate: float = 0.1):
    return mx.optimizer.SGD(learning_rate=rate, momentum=0.9)


both_kinds = pytest.mark.parametrize("kind", ["trainer", "optimizer"])


def make_trainer(kind: str, params, optimizer, **options):
    """One of hvdlite's two kinds: a trainer of its own, or Gluon's with its optimizer."""
    if kind == "trainer":
        return hvd.DistributedTrainer(params, optimizer, **options)
    return gluon.Trainer(params, hvd.DistributedOptimizer(optimizer, **options), kvstore=None)


def plain_trainer(net, optimizer, **arguments):
    return gluon.Trainer(net.collect_params(), optimizer, arguments or None, kvstore=None)
