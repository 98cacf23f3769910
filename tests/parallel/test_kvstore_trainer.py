"""gluon.Trainer with the kvstore dist_sync_mpi: what test_trainer.py does not test."""

import os

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from nets import backward, batch_of, dense_net, gradients, train, weights
from optimizers import plain_trainer, sgd
from trained import assert_close, assert_equal_on_all_ranks
from versions import no_sparse_gluon

import hvdlite as hvd
from hvdlite.mxnet.zero_copy import is_shared

BOUND = 1e-4  # bound of the relative difference from the weights of one process


def kv_trainer(net, optimizer=None, kvstore="dist_sync_mpi", **more):
    return gluon.Trainer(net.collect_params(), optimizer or sgd(), kvstore=kvstore, **more)


def step_of_all(net, trainer, step: int) -> None:
    """Divide the sum over ranks by the rows of all ranks, as scripts for dist_sync do."""
    backward(net, batch_of(hvd.rank(), step))
    trainer.step(4 * hvd.size())


def test_the_first_step_with_a_kvstore_keeps_batch_norm_statistics():
    """With static_alloc MXNet's engine does not know that backward writes the statistics."""
    for _ in range(8):
        net = gluon.nn.HybridSequential()
        net.add(gluon.nn.Dense(2000, in_units=500), gluon.nn.BatchNorm(), gluon.nn.Dense(3))
        net.initialize()
        net(mx.nd.ones((2, 500)))
        net.hybridize(static_alloc=True, static_shape=True)
        trainer = gluon.Trainer(net.collect_params(), "sgd", kvstore="dist_sync_mpi")
        mean = net[1].running_mean.data()
        with autograd.record():
            net(mx.nd.ones((64, 500))).sum().backward()
        trainer.step(1)
        assert mean.norm().asscalar() > 0


@pytest.mark.parametrize("shapes", ["known", "deferred"])
@pytest.mark.parametrize("on_store", [None, False, True], ids=["default", "own", "on store"])
def test_the_first_gradient_is_computed_with_rank_0s_weights(shapes, on_store, rank, size):
    """MXNet broadcasts weights only in the first step, after the first gradient was computed.

    As with DistributedTrainer, the ranks of a host share the memory of gradients.
    """

    def net_of(seed):
        mx.random.seed(seed)
        net = gluon.nn.Dense(4, activation="tanh", in_units=6 if shapes == "known" else 0)
        net.initialize(mx.init.Normal(1))
        return net

    nets = [net_of(rank), net_of(0)]
    trainer = kv_trainer(nets[0], update_on_kvstore=on_store)
    for seed, net in zip((rank, 0), nets):
        mx.random.seed(seed)  # the first forward draws the deferred weights
        backward(net, batch_of(rank))
    assert_close(weights(nets[0]), weights(nets[1]))
    assert_close(gradients(nets[0]), gradients(nets[1]))
    trainer.step(4)
    step_of_all(nets[0], trainer, 1)
    shares = size > 1 and os.environ.get("HVDLITE_WINDOW") != "0" and not on_store
    assert is_shared(nets[0].weight) == is_shared(nets[0].bias) == shares
    assert_equal_on_all_ranks(weights(nets[0]))


def test_batch_norm_statistics_start_equal_on_all_ranks(rank):
    """Trainer also broadcasts parameters without a gradient."""
    net = gluon.nn.BatchNorm(in_channels=3)
    net.initialize()
    net.running_mean.set_data(mx.nd.full((3,), rank))
    kv_trainer(net)
    assert net.running_mean.data().asnumpy().tolist() == [0, 0, 0]


# ---- several trainers, and parameters with other names ----


@pytest.mark.parametrize("on_store", [False, True], ids=["", "on store"])
def test_two_trainers_may_share_one_store(on_store, rank):
    """Both trainers use positions as keys, so the store must keep equal keys apart."""
    units, optimizers = [(8, 4), (5, 3, 2)], ["sgd", "adam"]
    kv = mx.kv.create("dist_sync_mpi")
    nets, alone = [dense_net(u, seed=rank) for u in units], [dense_net(u, seed=0) for u in units]
    trainers = [
        kv_trainer(net, optimizer, kvstore=kv, update_on_kvstore=on_store)
        for net, optimizer in zip(nets, optimizers)
    ]
    for step in range(2):
        for net, trainer in zip(nets, trainers):
            step_of_all(net, trainer, step)
    for net, model, optimizer in zip(nets, alone, optimizers):
        assert_close(weights(net), train(model, plain_trainer(model, optimizer), 2, joined=True))


def test_each_trainer_of_a_store_compresses_its_gradients():
    kv = mx.kv.create("dist_sync_mpi")
    kv.set_gradient_compression({"type": "fp16"})
    alone = dense_net()
    expected = train(alone, plain_trainer(alone, sgd()), 2, joined=True)
    for _ in range(2):
        net = dense_net()
        trainer = kv_trainer(net, kvstore=kv)
        for step in range(2):
            step_of_all(net, trainer, step)
        assert_close(weights(net), expected, tolerance=2e-3)
        with pytest.raises(AssertionError):  # the difference shows that float16 was used
            assert_close(weights(net), expected, tolerance=1e-7)


@pytest.mark.parametrize("name", ["sync_mpi", "allreduce", "mpi"])
def test_a_store_name_that_mxnet_would_ignore_is_an_error(name):
    """With one context, MXNet's Trainer uses a store only if its name contains 'dist'."""
    net = dense_net()
    trainer = kv_trainer(net, kvstore=name)
    backward(net, batch_of(0))
    unknown = f"kvstore '{name}' is unknown to MXNet.* use 'dist_sync_mpi'"
    for call in (lambda: trainer.step(4), lambda: mx.kv.create(name)):
        with pytest.raises(ValueError, match=unknown):
            call()


@pytest.mark.parametrize("name", ["device", "local", None])
def test_mxnets_local_stores_are_unchanged(name, rank):
    net, alone = dense_net(seed=rank), dense_net(seed=rank)
    for model, kvstore in ((net, name), (alone, None)):
        trainer = kv_trainer(model, kvstore=kvstore)
        backward(model, batch_of(rank))
        trainer.step(4)
    assert_close(weights(net), weights(alone), tolerance=0)


# ---- sparse ----


@no_sparse_gluon
@pytest.mark.parametrize("weight", ["default", "row_sparse"])
@pytest.mark.parametrize("gradient", ["default", "row_sparse"])
@pytest.mark.parametrize("asked", [None, True, False])
def test_by_default_the_trainer_updates_dense_weights_and_the_store_sparse_weights(
    weight, gradient, asked, monkeypatch
):
    """Unlike MXNet, where MXNET_UPDATE_ON_KVSTORE=1 is the default, hvdlite updates dense weights
    in the Trainer by default. All trainers use one store, as a script may."""
    kv, sparse = mx.kv.create("dist_sync_mpi"), "row_sparse" in (weight, gradient)
    for set_to, by_default in ((None, sparse), ("1", True)):
        monkeypatch.delenv("MXNET_UPDATE_ON_KVSTORE", raising=False)
        if set_to:
            monkeypatch.setenv("MXNET_UPDATE_ON_KVSTORE", set_to)
        param = gluon.Parameter("w", shape=(10, 1), stype=weight, grad_stype=gradient)
        param.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
        trainer = gluon.Trainer([param], "sgd", kvstore=kv, update_on_kvstore=asked)
        if sparse and asked is False:
            with pytest.raises(ValueError, match="Cannot set update_on_kvstore=False"):
                trainer._init_kvstore()
        else:
            trainer._init_kvstore()
            assert trainer._update_on_kvstore is (by_default if asked is None else asked)


@no_sparse_gluon
def test_set_data_of_a_sparse_weight_in_the_store_is_refused(rank):
    """Making the weight and reading its rows works; set_data() would have to reset the store."""

    def sparse_weight(value):
        weight = gluon.Parameter("w", shape=(4, 2), stype="row_sparse")
        weight.initialize(mx.init.Constant(value))
        return weight

    assert hvd.share_gradients([sparse_weight(rank)]) == []
    assert hvd.DistributedTrainer([sparse_weight(rank)], "sgd").zero_copy_parameters == []
    weight = sparse_weight(rank + 1)
    trainer = gluon.Trainer([weight], "sgd", kvstore="dist_sync_mpi")
    rows = weight.row_sparse_data(mx.nd.array([1, 3]))
    assert rows.indices.asnumpy().tolist() == [1, 3]
    assert rows.data.asnumpy().tolist() == [[1, 1], [1, 1]]
    assert trainer._update_on_kvstore
    with pytest.raises(RuntimeError, match="Cannot reset distributed KVStore"):
        weight.set_data(mx.nd.zeros((4, 2)).tostype("row_sparse"))


def words_of(rank: int, step: int):
    return np.random.RandomState(10 * step + rank).randint(0, 9, 4)


def all_rows(net):
    if net.weight._stype == "default":
        return net.weight.data().asnumpy()
    return net.weight.row_sparse_data(mx.nd.arange(9, dtype="int64")).asnumpy()


@no_sparse_gluon
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("name", ["dist_sync_mpi", "horovod"])
def test_sparse_weights_with_rows_from_the_store_train_as_in_one_process(
    optimizer, name, rank, size, parity
):
    """The weights are sparse. test_sparse.py tests dense weights with sparse gradients."""
    nets = gluon.contrib.nn.SparseEmbedding(9, 3), gluon.nn.Embedding(9, 3, sparse_grad=True)
    trainers = []
    for net, seed, kvstore in zip(nets, (rank, 0), (name, None)):
        mx.random.seed(seed)
        net.initialize(mx.init.Normal(1))
        params = net.collect_params()
        trainers.append(gluon.Trainer(params, optimizer, {"learning_rate": 0.1}, kvstore=kvstore))
    for step in range(3):
        joined = np.concatenate([words_of(r, step) for r in range(size)])
        for net, trainer, words in zip(nets, trainers, (words_of(rank, step), joined)):
            backward(net, words)
            trainer.step(4 * size + step)  # the batch size differs in each step
    trained, expected = ({"weight": all_rows(net)} for net in nets)
    parity(f"Trainer, sparse weights, {optimizer}", trained, expected, BOUND)
    assert_equal_on_all_ranks(trained)
