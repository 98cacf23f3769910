"""Which stores and trainers go together: several trainers, names, wrong calls."""

import mxnet as mx
import pytest
from kvstores import expected_of, kv_trainer, sgd, train
from mxnet import gluon
from nets import assert_close, backward, batch_of, dense_net, plain_trainer, weights

import hvdlite as hvd


def test_two_trainers_of_one_name(rank):
    nets, alone = [dense_net(seed=s) for s in (1, 2)], [dense_net(seed=s) for s in (1, 2)]
    trainers = [kv_trainer(net) for net in nets]
    for step in range(2):
        for net, trainer in zip(nets, trainers):
            backward(net, batch_of(rank, step))
            trainer.step(4 * hvd.size())
    for net, model in zip(nets, alone):
        expected = train(model, plain_trainer(model, sgd()), (4, 4), joined=True)
        assert_close(weights(net), expected)


def test_one_store_for_two_trainers_is_refused():
    """Their keys are positions, so a GAN's networks would get each other's gradients."""
    kv = mx.kv.create("dist_sync_mpi")
    net = dense_net()
    first = kv_trainer(net, kvstore=kv)
    with pytest.raises(ValueError, match="this kvstore serves another Trainer"):
        kv_trainer(dense_net(), kvstore=kv)
    del first
    again = kv_trainer(net, kvstore=kv)  # in its place: as when the optimizer changes
    assert_close(train(net, again, (4,)), expected_of((4,)))


@pytest.mark.usefixtures("asynchronous")
def test_blocks_built_before_on_one_rank(rank):
    """A Trainer sorts by name, and dense10 comes before dense9."""
    with mx.name.NameManager():  # counts from 0
        for _ in range(9 if rank == 0 else 0):
            gluon.nn.Dense(1)
        net, alone = dense_net((6, 6)), dense_net((6, 6))
    trained = train(net, kv_trainer(net), (4, 4))
    assert_close(trained, train(alone, plain_trainer(alone, sgd()), (4, 4), joined=True))


@pytest.mark.usefixtures("several")
def test_networks_that_differ(rank):
    net = dense_net((8, 4) if rank == 0 else (8, 4, 4))
    with pytest.raises(hvd.HvdliteError, match="ranks disagree on entry"):
        kv_trainer(net)


def test_an_optimizer_that_averages_by_itself_is_refused():
    with pytest.raises(ValueError, match="averages by itself: use it with kvstore=None"):
        kv_trainer(dense_net(), hvd.DistributedOptimizer(sgd()))


@pytest.mark.parametrize("name", ["sync_mpi", "allreduce", "mpi"])
def test_a_name_that_mxnet_would_drop_silently(name):
    """Without 'dist' in it, and with one context, a Trainer uses no store at all."""
    net = dense_net()
    trainer = kv_trainer(net, kvstore=name)
    backward(net, batch_of(0))
    with pytest.raises(ValueError, match=f"kvstore '{name}' is not one.* use 'dist_sync_mpi'"):
        trainer.step(4)


def test_capital_letters_are_the_same_name(rank):
    net, alone = dense_net(seed=rank), dense_net(seed=0)
    trained = train(net, kv_trainer(net, kvstore="Dist_Sync_MPI"), (4, 4))
    assert_close(trained, train(alone, plain_trainer(alone, sgd()), (4, 4), joined=True))


@pytest.mark.parametrize("name", ["device", "local", None])
def test_stores_of_one_process_are_untouched(name, rank):
    net, alone = dense_net(seed=rank), dense_net(seed=rank)
    x = batch_of(rank)
    for model, kvstore in ((net, name), (alone, None)):
        trainer = kv_trainer(model, kvstore=kvstore)
        backward(model, x)
        trainer.step(4)
    assert_close(weights(net), weights(alone), tolerance=0)
