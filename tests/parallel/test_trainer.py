"""DistributedTrainer: averages, clipping, names, and networks that differ between ranks."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from nets import backward, batch_of, dense_net, gradients, joined_batch, set_weights, train, weights
from optimizers import both_kinds, make_trainer, momentum_sgd, plain_trainer, sgd
from trained import assert_close, assert_equal_on_all_ranks

import hvdlite as hvd


@pytest.mark.parametrize("make", [list, dict, lambda items: items], ids=["list", "dict", "as is"])
def test_what_params_may_be(make):
    net, alone = dense_net(), dense_net()
    params = net.collect_params()
    given = list(params.values()) if make is list else make(params)
    trained = train(net, hvd.DistributedTrainer(given, sgd()))
    assert_close(trained, train(alone, plain_trainer(alone, sgd()), joined=True))


def convolutional_net():
    """Smooth: where a maximum is pooled, rounding can decide which pixel gets the gradient."""
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Conv2D(6, 5, in_channels=1, activation="tanh"), gluon.nn.AvgPool2D(2, 2))
    net.add(gluon.nn.Conv2D(8, 3, in_channels=6, activation="tanh"), gluon.nn.Dense(4))
    net.initialize()
    net(mx.nd.zeros((1, 1, 14, 14)))
    set_weights(net, seed=3)
    net.hybridize(static_alloc=True, static_shape=True)
    return net


@both_kinds
def test_a_convolutional_net_is_trained_as_by_one_process(kind, parity):
    net, alone = convolutional_net(), convolutional_net()
    trainer = make_trainer(kind, net.collect_params(), momentum_sgd(0.01))
    plain = plain_trainer(alone, momentum_sgd(0.01))
    for step in range(8):
        own, joined = batch_of(hvd.rank(), step, 4, 196), joined_batch(step, 4, 196)
        for model, its_trainer, x in ((net, trainer, own), (alone, plain, joined)):
            backward(model, x.reshape(-1, 1, 14, 14))
            its_trainer.step(len(x))
    assert_equal_on_all_ranks(weights(net))
    parity(f"convolutions, {kind}", weights(net), weights(alone), 5e-5)


@pytest.mark.parametrize("options", [{}, {"gradient_predivide_factor": 2.0}, {"num_groups": 2}])
def test_gradients_are_horovods_sums_where_they_are_asked_for(options, size, monkeypatch):
    """Divided by the predivide factor, as there; the update is that of averages."""
    monkeypatch.setenv("HVDLITE_HOROVOD_SUMS", "1")
    net, alone = dense_net(), dense_net()
    trainer = hvd.DistributedTrainer(net.collect_params(), sgd(), **options)
    backward(net, batch_of(hvd.rank()))
    trainer.allreduce_grads()
    backward(alone, joined_batch())
    factor = options.get("gradient_predivide_factor", 1)
    assert_close({n: g * factor for n, g in gradients(net).items()}, gradients(alone))
    net = dense_net()
    trained = train(net, hvd.DistributedTrainer(net.collect_params(), sgd(), **options))
    alone = dense_net()
    assert_close(trained, train(alone, plain_trainer(alone, sgd()), joined=True))


@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
def test_gradients_are_true_averages_or_sums_after_allreduce_grads(op, size):
    net, alone = dense_net(), dense_net()
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", op=op)
    backward(net, batch_of(hvd.rank()))
    trainer.allreduce_grads()
    backward(alone, joined_batch())
    ranks = size if op == hvd.Average else 1
    assert_close({n: g * ranks for n, g in gradients(net).items()}, gradients(alone))


def test_distributed_optimizer_inside_is_unwrapped():
    net, alone = dense_net(), dense_net()
    with pytest.warns(UserWarning, match="averages by itself"):
        trainer = hvd.DistributedTrainer(net.collect_params(), hvd.DistributedOptimizer(sgd()))
    assert not isinstance(trainer._optimizer, hvd.DistributedOptimizer)
    assert_close(train(net, trainer), train(alone, plain_trainer(alone, sgd()), joined=True))


def test_prefix_names_the_tensors(size):
    nets = [dense_net(), dense_net()]
    for net, prefix in zip(nets, ("generator", "critic")):
        trainer = hvd.DistributedTrainer(net.collect_params(), sgd(), prefix=prefix)
        train(net, trainer)
    assert_close(weights(nets[0]), weights(nets[1]))


def test_a_trainer_guards_itself_if_the_environment_says_so(monkeypatch, rank):
    monkeypatch.setenv("HVDLITE_GUARD_STEPS", "1")
    net = dense_net()
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd")
    for step in range(2):
        backward(net, batch_of(rank, step) * (np.nan if step and rank == 0 else 1))
        if step == 0:
            trainer.step(4)
    with pytest.raises(hvd.HvdliteError, match=r"before step 2: the gradient of .* on rank 0 "):
        trainer.step(4)
    monkeypatch.setenv("HVDLITE_GUARD_STEPS", "often")
    with pytest.raises(ValueError, match="HVDLITE_GUARD_STEPS is 'often': expected a whole"):
        hvd.DistributedTrainer(net.collect_params(), "sgd")
