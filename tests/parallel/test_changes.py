"""Scripts that change parameters between steps: on all ranks, or on only one rank."""

import contextlib

import mxnet as mx
import pytest
from mxnet import autograd, gluon
from nets import weights
from trained import assert_close, assert_equal_on_all_ranks

import hvdlite as hvd


def net_of(sparse: bool = False):
    """Return three layers with known weights; ``sparse``: the first layer has sparse gradients."""
    net = gluon.nn.Sequential()
    net.add(gluon.nn.Embedding(4, 3, sparse_grad=sparse))
    net.add(gluon.nn.Dense(3, in_units=3), gluon.nn.Dense(2, in_units=3))
    net.initialize(mx.init.One())
    return net


def distributed(net):
    return hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})


def sharded(net):
    return hvd.ShardedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})


def by_parts(net):
    return hvd.ShardedTrainer(net.collect_params(), "ftml", {"learning_rate": 0.1})


def optimizer(net):
    own = hvd.DistributedOptimizer(mx.optimizer.SGD(learning_rate=0.1))
    return gluon.Trainer(net.collect_params(), own, kvstore=None)


def summed(net):
    return gluon.Trainer(
        net.collect_params(), "sgd", {"learning_rate": 0.1}, "dist_sync_mpi",
        update_on_kvstore=False,
    )  # fmt: skip


def on_store(net):
    return gluon.Trainer(
        net.collect_params(), "sgd", {"learning_rate": 0.1}, "dist_sync_mpi", update_on_kvstore=True
    )


TRAINERS = [distributed, sharded, by_parts, optimizer, summed, on_store]


def step(net, trainer, words, rows=1, **options) -> None:
    for param in net.collect_params().values():
        param.zero_grad()
    with autograd.record():
        net(words).sum().backward()
    trainer.step(rows, **options)


def set_req(value: str):
    def change(net):
        net[1].weight.grad_req = value

    change.__name__ = value
    return change


def cast(net):
    net.cast("float64")


def reinitialize(net):
    """Change only values that may differ between ranks."""
    net[1].initialize(mx.init.One(), force_reinit=True)


CHANGES = [set_req("null"), set_req("add"), cast, reinitialize]


def words_of(rank: int):
    return mx.nd.array([rank % 4, 1])


def fails(text: str, *call, **options) -> None:
    with pytest.raises((mx.MXNetError, hvd.HvdliteError), match=text):
        step(*call, **options)
        mx.nd.waitall()
    for _ in range(8):  # each parameter raises a separate error
        with contextlib.suppress(mx.MXNetError):
            mx.nd.waitall()


@pytest.mark.parametrize("stale", [False, True], ids=["", "ignore_stale_grad"])
@pytest.mark.parametrize("change", CHANGES[:2])
@pytest.mark.parametrize("make", TRAINERS)
def test_a_change_on_only_one_rank_is_an_error_on_all_ranks(make, change, stale, rank, several):
    """Without the error, only one rank adds up gradients, or the other ranks wait forever."""
    if stale and make in (optimizer, summed, on_store):
        pytest.skip("needs a DistributedTrainer")
    net, options = net_of(), {"ignore_stale_grad": True} if stale else {}
    trainer = make(net)
    for _ in range(2):
        step(net, trainer, words_of(rank), **options)
    before = weights(net)
    if rank == 1:
        change(net)
    text = "disagree on the parameters changed before this step: .*rank 1: changed"
    more = f".*dense.*weight' .*grad_req {change.__name__}\\), formerly .*grad_req write"
    fails(text + (more if rank == 1 else ""), net, trainer, words_of(rank), **options)
    assert_close(weights(net), before, tolerance=0)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("make", TRAINERS)
def test_training_is_right_after_the_same_change_on_all_ranks(make, change, sparse, rank, size):
    if change in CHANGES[2:] and make in (sharded, by_parts, on_store):
        pytest.skip("needs a new trainer")
    if make is by_parts or (sparse and make is summed):
        pytest.skip("MXNet has no such optimizer for comparison, or refuses sparse gradients")
    nets = net_of(sparse), net_of(sparse)
    everyone = mx.nd.concat(*[words_of(r) for r in range(size)], dim=0)
    plain = gluon.Trainer(nets[1].collect_params(), "sgd", {"learning_rate": 0.1}, kvstore=None)
    trainer, share = make(nets[0]), 1 if make in (summed, on_store) else size
    for number in range(4):
        if number == 2:
            change(nets[0])
            change(nets[1])
        step(nets[0], trainer, words_of(rank))
        step(nets[1], plain, everyone, rows=share)
    assert_equal_on_all_ranks(weights(nets[0]))
    assert_close(weights(nets[0]), weights(nets[1]))


def passes(net, number: int):
    how = {"backward_passes_per_step": 1 + number}
    return hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, **how)


def optimizer_passes(net, number: int):
    plain = mx.optimizer.SGD(learning_rate=0.1)
    own = hvd.DistributedOptimizer(plain, backward_passes_per_step=1 + number)
    return gluon.Trainer(net.collect_params(), own, kvstore=None)


def update_on_kvstore(net, number: int):
    return on_store(net) if number else summed(net)


@pytest.mark.parametrize("make", [passes, optimizer_passes, update_on_kvstore])
def test_a_setting_of_only_one_rank_is_an_error_on_all_ranks(make, rank, several):
    """Without the error, a rank sums another number of batches, or its store waits forever."""
    net, number = net_of(), int(rank == 1)
    trainer = make(net, number)
    text = r"entry 5: .*rank.* 1.*: (backward_passes_per_step 2|update_on_kvstore True)"
    with pytest.raises(hvd.HvdliteError, match=text):
        for _ in range(2):
            step(net, trainer, words_of(rank))
