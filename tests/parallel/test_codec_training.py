"""Training with compressed gradients: as the models say, in step on all ranks."""

import copy
import pickle

import numpy as np
import pytest
from codecs_model import CASES
from mxnet import gluon
from nets import (
    assert_close,
    assert_equal_on_all_ranks,
    backward,
    batch_of,
    both_kinds,
    dense_net,
    gradients,
    make_trainer,
    momentum_sgd,
    plain_trainer,
    train,
    weights,
)

import hvdlite as hvd


def gradients_of_ranks(net, step: int) -> list:
    """What each rank's gradients are, computed here one after the other."""
    result = []
    for rank in range(hvd.size()):
        backward(net, batch_of(rank, step))
        result.append(gradients(net))
    return result


def trained_by_model(model, steps: int) -> dict:
    """Weights after training one process with the model's averages in place of the allreduce."""
    net = dense_net()
    trainer, models = plain_trainer(net, momentum_sgd()), {}
    for step in range(steps):
        everyone = gradients_of_ranks(net, step)
        for name, param in net._collect_params_with_prefix().items():
            own = models.setdefault(name, model())
            average = own.step([theirs[name] for theirs in everyone])
            param.grad()[:] = average.reshape(param.shape)
        trainer.step(4)
    return weights(net)


@both_kinds
@pytest.mark.parametrize("case", ["2bit", "1bit", "topk"])
def test_training_is_that_of_the_model(kind, case):
    """To the last bit: each parameter has its own residual, and the average is taken once."""
    compression, model = CASES[case]
    net = dense_net()
    trained = train(
        net,
        make_trainer(kind, net.collect_params(), momentum_sgd(), compression=compression),
        steps=6,
    )
    assert_equal_on_all_ranks(trained)
    for name, value in trained_by_model(model, steps=6).items():
        np.testing.assert_array_equal(trained[name], value, name)


@pytest.mark.parametrize("params", [{"type": "2bit", "threshold": 0.5}, {"type": "1bit"}], ids=str)
@pytest.mark.parametrize("on_store", [False, True], ids=["", "on store"])
def test_a_plain_trainer_with_the_kvstore(params, on_store):
    """What fails with dist_sync ('Compression not supported with PushPull'): the same weights."""
    net = dense_net()
    trainer = gluon.Trainer(
        net.collect_params(), momentum_sgd(), kvstore="dist_sync_mpi", update_on_kvstore=on_store,
        compression_params=params,
    )  # fmt: skip
    for step in range(4):
        backward(net, batch_of(hvd.rank(), step))
        trainer.step(4 * hvd.size())  # the sums of all ranks, divided by all rows
    assert_equal_on_all_ranks(weights(net))
    assert_close(weights(net), trained_by_model(CASES[params["type"]][1], steps=4), 1e-6)


def test_shared_gradients():
    """Gradients in memory that ranks share are compressed like others, not reduced in place."""
    trained = []
    for shared in (False, True):
        params = (net := dense_net()).collect_params()
        if shared:
            hvd.share_gradients(params.values())
        how = {"compression": hvd.Compression.two_bit(0.25)}
        trained.append(train(net, hvd.DistributedTrainer(params, momentum_sgd(), **how)))
    for name, value in trained[0].items():
        np.testing.assert_array_equal(trained[1][name], value, name)


def test_copies_of_an_optimizer_keep_the_compression():
    for compression in (hvd.Compression.two_bit(0.25), hvd.Compression.fp16):
        optimizer = hvd.DistributedOptimizer(momentum_sgd(), compression=compression)
        for other in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
            assert other._averaging.gradients.reduction.compression == compression
