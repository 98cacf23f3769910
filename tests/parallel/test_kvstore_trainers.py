"""Which stores and trainers go together: several trainers, names, wrong calls."""

import mxnet as mx
import pytest
from kvstores import expected_of, kv_trainer, train
from mxnet import gluon
from nets import backward, batch_of, dense_net, weights
from optimizers import plain_trainer
from trained import assert_close
from versions import no_sparse_gluon

import hvdlite as hvd


@pytest.mark.parametrize("on_store", [False, True], ids=["", "on store"])
def test_one_store_for_two_trainers(on_store, rank):
    """Of other shapes, as a GAN's: the keys of both are positions, and must not meet."""
    units, optimizers = [(8, 4), (5, 3, 2)], ["sgd", "adam"]
    kv = mx.kv.create("dist_sync_mpi")
    nets, alone = [dense_net(u, seed=rank) for u in units], [dense_net(u, seed=0) for u in units]
    trainers = [
        kv_trainer(net, optimizer, kvstore=kv, update_on_kvstore=on_store)
        for net, optimizer in zip(nets, optimizers)
    ]
    for step in range(2):
        for net, trainer in zip(nets, trainers):
            backward(net, batch_of(rank, step))
            trainer.step(4 * hvd.size())
    for net, model, optimizer in zip(nets, alone, optimizers):
        expected = train(model, plain_trainer(model, optimizer), (4, 4), joined=True)
        assert_close(weights(net), expected)


def test_a_trainer_in_the_place_of_another(rank):
    """As when a script changes its optimizer half-way."""
    kv = mx.kv.create("dist_sync_mpi")
    net, alone = dense_net(), dense_net()
    for optimizer in ("adam", "sgd"):
        train(net, kv_trainer(net, optimizer, kvstore=kv), (4, 4))
        train(alone, plain_trainer(alone, optimizer), (4, 4), joined=True)
    assert_close(weights(net), weights(alone))


def test_every_trainer_of_a_store_has_its_compression():
    kv = mx.kv.create("dist_sync_mpi")
    kv.set_gradient_compression({"type": "fp16"})
    for _ in range(2):
        net = dense_net()
        trained = train(net, kv_trainer(net, kvstore=kv), (4, 4))
        assert_close(trained, expected_of((4, 4)), tolerance=2e-3)
        with pytest.raises(AssertionError):  # it did go through float16
            assert_close(trained, expected_of((4, 4)), tolerance=1e-7)


@no_sparse_gluon
@pytest.mark.parametrize("weight", ["default", "row_sparse"])
@pytest.mark.parametrize("gradient", ["default", "row_sparse"])
@pytest.mark.parametrize("asked", [None, True, False])
def test_who_updates(weight, gradient, asked, monkeypatch):
    """As with MXNet's servers where MXNET_UPDATE_ON_KVSTORE is 1, its default; ours is the Trainer
    itself, as long as all is dense. One store for all, as a script may have."""
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


def sparse_weight(value):
    weight = gluon.Parameter("w", shape=(4, 2), stype="row_sparse")  # its gradient is dense
    weight.initialize(mx.init.Constant(value))
    return weight


@no_sparse_gluon
def test_a_trainer_for_a_sparse_weight_with_a_dense_gradient(rank):
    """MXNet makes one and reads rows of the weight; only step() is an error of its own."""
    weight = sparse_weight(rank + 1)
    trainer = gluon.Trainer([weight], "sgd", kvstore="dist_sync_mpi")
    rows = weight.row_sparse_data(mx.nd.array([1, 3]))
    assert rows.indices.asnumpy().tolist() == [1, 3]
    assert rows.data.asnumpy().tolist() == [[1, 1], [1, 1]]
    assert trainer._update_on_kvstore
    with pytest.raises(RuntimeError, match="Cannot reset distributed KVStore"):
        weight.set_data(mx.nd.zeros((4, 2)).tostype("row_sparse"))


@no_sparse_gluon
def test_nothing_is_shared_of_a_sparse_weight_with_a_dense_gradient(rank):
    assert hvd.share_gradients([sparse_weight(rank)]) == []
    assert hvd.DistributedTrainer([sparse_weight(rank)], "sgd").zero_copy_parameters == []


@pytest.mark.parametrize("name", ["sync_mpi", "allreduce", "mpi"])
def test_a_name_that_mxnet_would_drop_silently(name):
    """Without 'dist' in it, and with one context, a Trainer uses no store at all."""
    net = dense_net()
    trainer = kv_trainer(net, kvstore=name)
    backward(net, batch_of(0))
    unknown = f"kvstore '{name}' is not one.* use 'dist_sync_mpi'"
    with pytest.raises(ValueError, match=unknown):
        trainer.step(4)
    with pytest.raises(ValueError, match=unknown):
        mx.kv.create(name)


@pytest.mark.parametrize("name", ["device", "local", None])
def test_stores_of_one_process_are_untouched(name, rank):
    net, alone = dense_net(seed=rank), dense_net(seed=rank)
    x = batch_of(rank)
    for model, kvstore in ((net, name), (alone, None)):
        trainer = kv_trainer(model, kvstore=kvstore)
        backward(model, x)
        trainer.step(4)
    assert_close(weights(net), weights(alone), tolerance=0)
