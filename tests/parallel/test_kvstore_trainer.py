"""gluon.Trainer with the kvstore dist_sync_mpi: one process's training on the joined batch."""

import os

import mxnet as mx
import numpy as np
import pytest
from kvstores import expected_of, kv_trainer, sgd, train
from mxnet import autograd, gluon
from nets import backward, backward_of, batch_of, dense_net, gradients, move_to, weights
from optimizers import plain_trainer
from trained import assert_close, assert_equal_on_all_ranks
from versions import MXNET2, no_sparse_gluon

import hvdlite as hvd
from hvdlite.mxnet.zero_copy import is_shared

on_store = pytest.mark.parametrize(
    "on_store", [None, False, True], ids=["default", "own", "on store"]
)
NAMES = ["dist_sync_mpi", "horovod"]
CONTEXTS = [mx.cpu(0), mx.cpu(1)]
BOUND = 1e-4  # of the relative difference from one process's weights


@pytest.mark.parametrize("name", ["adam", "nag", "signum", "adagrad", "lamb"])
@pytest.mark.parametrize("on_store", [False, True], ids=["", "on store"])
def test_other_optimizers(name, on_store):
    if MXNET2 and on_store and name == "lamb":
        pytest.skip("MXNet 2 has no optimizer on a store that updates several weights at once")
    net = dense_net()
    trained = train(net, kv_trainer(net, name, update_on_kvstore=on_store), (4, 4))
    assert_close(trained, expected_of((4, 4), name), tolerance=1e-4)
    assert_equal_on_all_ranks(trained)


def test_the_first_step_does_not_lose_statistics():
    """With static_alloc MXNet's engine does not know that BatchNorm writes them in backward."""
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


def test_multipliers_and_schedules():
    def optimizer():
        return sgd(lr_scheduler=mx.lr_scheduler.FactorScheduler(1, 0.5), clip_gradient=0.3)

    results = []
    for on_store in (False, True):
        net = dense_net()
        net[0].weight.lr_mult, net[1].bias.wd_mult = 0.1, 0.0
        results.append(
            train(net, kv_trainer(net, optimizer(), update_on_kvstore=on_store), (4,) * 3)
        )
    alone = dense_net()
    alone[0].weight.lr_mult, alone[1].bias.wd_mult = 0.1, 0.0
    expected = train(alone, plain_trainer(alone, optimizer()), (4,) * 3, joined=True)
    for trained in results:
        assert_close(trained, expected)


@pytest.mark.parametrize("shapes", ["known", "deferred"])
@on_store
def test_first_gradient_is_that_of_rank_0s_weights(shapes, on_store, rank):
    """MXNet puts weights in step at the first step, when a wrong gradient has been computed."""

    def net_of(seed):
        mx.random.seed(seed)
        net = gluon.nn.Dense(4, activation="tanh", in_units=6 if shapes == "known" else 0)
        net.initialize(mx.init.Normal(1))
        return net

    nets = [net_of(rank), net_of(0)]
    trainer = kv_trainer(nets[0], update_on_kvstore=on_store)
    for seed, net in zip((rank, 0), nets):
        mx.random.seed(seed)  # deferred weights are drawn by the first forward
        backward(net, batch_of(rank))
    assert_close(weights(nets[0]), weights(nets[1]))
    assert_close(gradients(nets[0]), gradients(nets[1]))
    trainer.step(4)
    assert_equal_on_all_ranks(weights(nets[0]))


@pytest.mark.parametrize("shapes", ["known", "deferred"])
def test_gradients_are_summed_where_they_lie(shapes, rank, several):
    """As with DistributedTrainer: in memory that the ranks of a host share."""
    net = gluon.nn.Dense(4, in_units=6 if shapes == "known" else 0)
    net.initialize()
    trainer = kv_trainer(net)
    for step in range(2):
        backward(net, batch_of(rank, step))
        trainer.step(4)
    shares = os.environ.get("HVDLITE_WINDOW") != "0"
    assert is_shared(net.weight) == is_shared(net.bias) == shares
    assert_equal_on_all_ranks(weights(net))


@pytest.mark.parametrize("on_store", [False, True], ids=["", "on store"])
def test_several_contexts(on_store, size, parity):
    """Each context has half of the rank's rows."""
    net = dense_net()
    move_to(net, CONTEXTS)
    trainer = kv_trainer(net, update_on_kvstore=on_store)
    for step in range(3):
        parts = gluon.utils.split_and_load(mx.nd.array(batch_of(hvd.rank(), step)), CONTEXTS)
        backward_of([(net, part) for part in parts])
        trainer.step(4 * size)
    expected = expected_of()
    for context in CONTEXTS:
        params = net._collect_params_with_prefix().items()
        trained = {name: param.data(context).asnumpy() for name, param in params}
        parity(f"Trainer, 2 contexts, {context}", trained, expected, BOUND)


@on_store
def test_states_are_saved_and_loaded(on_store, tmp_path_factory, parity):
    """Also in one process without hvdlite, and from there."""
    file = hvd.broadcast_object(str(tmp_path_factory.mktemp("states") / "trainer.states"))
    net = dense_net()
    trainer = kv_trainer(net, update_on_kvstore=on_store)
    train(net, trainer, (4, 4))
    if hvd.rank() == 0:
        trainer.save_states(file)
    middle = hvd.broadcast_object(weights(net))
    alone, again = dense_net(), dense_net()
    for other in (alone, again):
        for name, param in other._collect_params_with_prefix().items():
            param.set_data(mx.nd.array(middle[name]))
    resumed = kv_trainer(again, sgd(), update_on_kvstore=on_store)
    resumed.load_states(file)
    plain = plain_trainer(alone, sgd())
    plain.load_states(file)
    trained = train(again, resumed, (4, 4))
    parity("Trainer, resumed", trained, train(alone, plain, (4, 4), joined=True), BOUND)
    assert_close(trained, train(net, trainer, (4, 4)))


def test_batch_norm_statistics_start_equal(rank):
    """Trainer broadcasts what has no gradient, too."""
    net = gluon.nn.BatchNorm(in_channels=3)
    net.initialize()
    net.running_mean.set_data(mx.nd.full((3,), rank))
    kv_trainer(net)
    assert net.running_mean.data().asnumpy().tolist() == [0, 0, 0]


# ---- sparse ----


def embedding(weight_stype: str, seed: int):
    params = gluon.contrib.nn if weight_stype == "row_sparse" else gluon.nn
    kind = params.SparseEmbedding if weight_stype == "row_sparse" else params.Embedding
    net = kind(9, 3, **({} if weight_stype == "row_sparse" else {"sparse_grad": True}))
    mx.random.seed(seed)
    net.initialize(mx.init.Normal(1))
    return net


def words_of(rank: int, step: int):
    return np.random.RandomState(10 * step + rank).randint(0, 9, 4)


def all_rows(net):
    if net.weight._stype == "default":
        return net.weight.data().asnumpy()
    return net.weight.row_sparse_data(mx.nd.arange(9, dtype="int64")).asnumpy()


@no_sparse_gluon
@pytest.mark.parametrize("stype", ["default", "row_sparse"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("name", NAMES)
def test_sparse_parameters(stype, optimizer, name, rank, size, parity):
    """Sparse gradients of dense weights, and sparse weights, whose rows come from the store."""
    net, alone = embedding(stype, seed=rank), embedding("default", seed=0)
    trainer = gluon.Trainer(net.collect_params(), optimizer, {"learning_rate": 0.1}, kvstore=name)
    plain = gluon.Trainer(alone.collect_params(), optimizer, {"learning_rate": 0.1}, kvstore=None)
    for step in range(3):
        own = words_of(rank, step)
        joined = np.concatenate([words_of(r, step) for r in range(size)])
        for model, its_trainer, words in ((net, trainer, own), (alone, plain, joined)):
            backward(model, words)
            its_trainer.step(4 * size + step)  # another batch size each time
    trained, expected = {"weight": all_rows(net)}, {"weight": all_rows(alone)}
    parity(f"Trainer, sparse {stype} weights, {optimizer}", trained, expected, BOUND)
    assert_equal_on_all_ranks({"weight": all_rows(net)})
