"""What DistributedTrainer and DistributedOptimizer can be told, as in Horovod 0.28.1 and beyond."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from nets import dense_net, train
from optimizers import make_trainer, momentum_sgd, plain_trainer

import hvdlite as hvd
from hvdlite.mxnet.push import InPlace
from hvdlite.training.plan import split_by_bytes


def test_predivided_sums_do_not_overflow(size):
    """That is what the factor is for: float16 ends at 65504."""
    results = {}
    for factor in (1.0, 64.0):
        w = gluon.Parameter("w", shape=(3,), dtype="float16")
        w.initialize(mx.init.Zero())
        trainer = hvd.DistributedTrainer([w], "sgd", gradient_predivide_factor=factor)
        w.grad()[:] = 60000 / size
        trainer.allreduce_grads()
        results[factor] = w.grad().asnumpy().astype("float32")
    np.testing.assert_allclose(results[64.0], 60000 / size, rtol=2e-3)
    np.testing.assert_allclose(results[1.0], 60000 / size, rtol=2e-3)  # here the sum is a float32


@pytest.mark.parametrize("name", ["sgd", "adam", "lamb", "rmsprop"])
def test_each_gradient_is_sent_once_a_step(name):
    """Also where update_multi_precision() calls update(), and where it takes lists."""
    net = dense_net()
    trainer = plain_trainer(net, hvd.DistributedOptimizer(mx.optimizer.create(name)))
    train(net, trainer, steps=1)  # pairs the parameters, too
    before = hvd.stats()["tensors"]
    train(net, trainer, steps=3)
    assert hvd.stats()["tensors"] - before == 3 * len(net.collect_params().keys())


KIB = 1024


@pytest.mark.parametrize(
    "sizes, runs",
    [
        ([], []),
        ([5], [[5]]),
        ([KIB, KIB, 4096 * KIB, KIB], [[KIB, KIB], [4096 * KIB, KIB]]),
        ([600 * KIB] * 5, [[600 * KIB], [600 * KIB] * 2, [600 * KIB] * 2]),
        ([KIB] * 1024, [[KIB] * 1024]),
        ([KIB] * 1025, [[KIB], [KIB] * 1024]),
        ([1024 * KIB] * 3, [[1024 * KIB]] * 3),
    ],
)
def test_groups_are_of_a_mebibyte_or_more_counted_from_the_last_layer(sizes, runs):
    assert split_by_bytes(sizes, sizes) == runs


def test_a_trainer_submits_a_group_as_one_operation(monkeypatch):
    """Two weights of 512 KiB, and the biases that come before them by name, make a group."""
    net = dense_net((1024, 128, 1024, 128, 1024))
    trainer = make_trainer("trainer", net.collect_params(), momentum_sgd())
    train(net, trainer)
    sent, push = [], InPlace.push
    monkeypatch.setattr(
        InPlace, "push", lambda self, arrays: sent.append(len(arrays)) or push(self, arrays)
    )
    trainer._gradients.forget()  # which keeps the method
    trainer.allreduce_grads()
    mx.nd.waitall()
    assert sent == [3, 4, 3]
