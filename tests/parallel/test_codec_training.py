"""Training with compressed gradients: by the sums of test_codec.py, in step on all ranks."""

import copy
import pickle

import pytest
from mxnet import gluon
from nets import backward, batch_of, dense_net, train, weights
from optimizers import both_kinds, make_trainer, momentum_sgd, plain_trainer
from trained import assert_close, assert_equal_on_all_ranks

import hvdlite as hvd
from hvdlite.mxnet.compression import from_params
from hvdlite.mxnet.gradients import Reducer


def trained_by_sums(compression, steps: int) -> dict:
    """What a plain trainer comes to with these averages, each with a residual of its own."""
    net, reducer = dense_net(), Reducer(compression)
    trainer = plain_trainer(net, momentum_sgd())
    for step in range(steps):
        backward(net, batch_of(hvd.rank(), step))
        for name, param in net._collect_params_with_prefix().items():
            reducer.allreduce_(param.grad(), name)
        trainer.step(4)
    return weights(net)


@both_kinds
@pytest.mark.parametrize("name", ["2bit", "1bit", "topk"])
def test_training_is_that_of_the_sums(kind, name):
    """To the last bit: the average is taken once."""
    net, compression = dense_net(), from_params({"type": name})
    trainer = make_trainer(kind, net.collect_params(), momentum_sgd(), compression=compression)
    trained = train(net, trainer, steps=6)
    assert_equal_on_all_ranks(trained)
    assert_close(trained, trained_by_sums(compression, steps=6), 0)


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
    assert_close(weights(net), trained_by_sums(from_params(params), steps=4), 1e-6)


def test_shared_gradients():
    """Gradients in memory that ranks share are compressed like others, not reduced in place."""
    trained = []
    for shared in (False, True):
        params = (net := dense_net()).collect_params()
        if shared:
            hvd.share_gradients(params.values())
        how = {"compression": hvd.Compression.two_bit(0.25)}
        trained.append(train(net, hvd.DistributedTrainer(params, momentum_sgd(), **how)))
    assert_close(*trained, 0)


def test_copies_of_an_optimizer_keep_the_compression():
    for compression in (hvd.Compression.two_bit(0.25), hvd.Compression.fp16):
        optimizer = hvd.DistributedOptimizer(momentum_sgd(), compression=compression)
        for other in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
            assert other._averaging.gradients.reduction.compression == compression
