"""DistributedTrainer: averages, clipping, names, and networks that differ between ranks."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from nets import (
    assert_close,
    assert_equal_on_all_ranks,
    backward,
    batch_of,
    clear_gradients,
    dense_net,
    gradients,
    joined_batch,
    plain_trainer,
    sgd,
    train,
    weights,
)

import hvdlite as hvd


@pytest.mark.parametrize("make", [list, dict, lambda items: items], ids=["list", "dict", "as is"])
def test_what_params_may_be(make):
    net, alone = dense_net(), dense_net()
    params = net.collect_params()
    given = list(params.values()) if make is list else make(params)
    trained = train(net, hvd.DistributedTrainer(given, sgd()))
    assert_close(trained, train(alone, plain_trainer(alone, sgd()), joined=True))


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


def test_rescale_grad_and_clip_gradient_of_the_optimizer():
    options = {"rescale_grad": 0.25, "clip_gradient": 0.05}
    net, alone = dense_net(), dense_net()
    trained = train(net, hvd.DistributedTrainer(net.collect_params(), sgd(**options)))
    assert_close(trained, train(alone, plain_trainer(alone, sgd(**options)), joined=True))


@pytest.mark.usefixtures("several")
def test_networks_of_other_length(rank):
    net = dense_net((8,) if rank == 0 else (8, 4))
    trainer = hvd.DistributedTrainer(net.collect_params(), sgd())
    backward(net, batch_of(rank))
    with pytest.raises(hvd.HvdliteError, match=r"2: rank 0: nothing; rank 1: \S*bias"):
        trainer.step(4)


def test_grad_req_null_and_add():
    """Frozen layers take no part; accumulated gradients are averaged when step() says so."""
    nets = [dense_net(), dense_net()]
    for net in nets:
        params = net._collect_params_with_prefix()
        params["0.weight"].grad_req = "null"
        params["1.weight"].grad_req = "add"
    ours = hvd.DistributedTrainer(nets[0].collect_params(), sgd())
    plain = plain_trainer(nets[1], sgd())
    for _ in range(2):
        for net, trainer, joined in ((nets[0], ours, False), (nets[1], plain, True)):
            rows = 0
            for part in range(3):
                x = joined_batch(part) if joined else batch_of(hvd.rank(), part)
                backward(net, x)
                rows += len(x)
            trainer.step(rows)
            clear_gradients(net)
    assert_close(weights(nets[0]), weights(nets[1]))
    np.testing.assert_array_equal(weights(nets[0])["0.weight"], weights(dense_net())["0.weight"])


def test_batchnorm_statistics_are_left_alone():
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(4, in_units=6), gluon.nn.BatchNorm(in_channels=4))
    net.initialize(mx.init.One())
    trainer = hvd.DistributedTrainer(net.collect_params(), sgd())
    train(net, trainer, steps=3)
    trained = {n: w for n, w in weights(net).items() if "running" not in n}
    assert_equal_on_all_ranks(trained)
    assert net[1].running_mean.grad_req == "null"


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
