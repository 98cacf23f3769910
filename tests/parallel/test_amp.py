"""MXNet's AMP: every rank has the same loss scale and skips the same steps."""

import mxnet as mx
import numpy as np
import pytest
from gluon2 import amp
from mxnet import autograd
from nets import backward, batch_of, dense_net, joined_batch, weights
from optimizers import momentum_sgd, plain_trainer
from trained import assert_close, assert_equal_on_all_ranks

import hvdlite as hvd


@pytest.fixture(autouse=True)
def only_the_loss_scaler(monkeypatch):
    """Use AMP without amp.init(), which makes operators cast to float16: CPUs can't compute it."""
    monkeypatch.setattr(amp.amp, "_amp_initialized", True)
    monkeypatch.setattr(amp.amp, "_amp_loss_scale_initialized", True)


def scaled_backward(net, trainer, x, factor=1.0) -> None:
    with autograd.record():
        loss = (net(mx.nd.array(x)) ** 2).sum() * factor
        with amp.scale_loss(loss, trainer) as scaled:
            autograd.backward(scaled)


def make(net, **options):
    trainer = hvd.DistributedTrainer(net.collect_params(), momentum_sgd(), **options)
    amp.init_trainer(trainer)
    return trainer


def test_with_amp_gradients_are_unscaled_and_clipped_after_the_allreduce(size):
    """The recipe of MXNet's manual: allreduce_grads, unscale, clip, update."""
    net, alone = dense_net(), dense_net()
    trainer, plain = make(net), plain_trainer(alone, momentum_sgd())
    for step in range(3):
        scaled_backward(net, trainer, batch_of(hvd.rank(), step))
        trainer.allreduce_grads()
        amp.unscale(trainer)
        clip(net, 0.3 * 4)
        trainer.update(4)
        x = joined_batch(step)
        backward(alone, x)
        assert clip(alone, 0.3 * 4 * size) > 0.3 * 4 * size
        plain.update(len(x))
    assert_close(weights(net), weights(alone))


def clip(net, most: float) -> float:
    params = net.collect_params().values()
    return mx.gluon.utils.clip_global_norm([p.grad() for p in params], most)


def test_an_overflow_in_one_of_several_passes_skips_the_step(rank, size):
    net = dense_net()
    trainer = make(net, backward_passes_per_step=3)
    before = weights(net)
    for i in range(3):
        bad = i == 1 and rank == size - 1
        scaled_backward(net, trainer, batch_of(rank, i), np.inf if bad else 1.0)
        trainer.step(4)
    for name, w in weights(net).items():
        np.testing.assert_array_equal(w, before[name])
    for i in range(3):
        scaled_backward(net, trainer, batch_of(rank, i))
        trainer.step(4)
    assert np.isfinite(weights(net)["0.weight"]).all()
    assert (weights(net)["0.weight"] != before["0.weight"]).any()
    assert_equal_on_all_ranks(weights(net))


def test_amp_refuses_a_distributed_optimizer():
    """AMP checks gradients before the optimizer averages: ranks would skip different steps."""
    net = dense_net()
    trainer = plain_trainer(net, hvd.DistributedOptimizer(momentum_sgd()))
    amp.init_trainer(trainer)
    scaled_backward(net, trainer, batch_of(hvd.rank()))
    with pytest.raises(ValueError, match="AMP looks for overflow before .*DistributedTrainer"):
        trainer.step(4)
