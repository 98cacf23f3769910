"""Scripts that change parameters between steps: on all ranks, or on only one rank."""

import contextlib

import mxnet as mx
import pytest
from mxnet import autograd, gluon
from nets import weights
from optimizers import STORES, make_trainer
from trained import assert_close, assert_equal_on_all_ranks

import hvdlite as hvd


def net_of(sparse: bool = False):
    """Return three layers with known weights; ``sparse``: the first layer has sparse gradients."""
    net = gluon.nn.Sequential()
    net.add(gluon.nn.Embedding(4, 3, sparse_grad=sparse))
    net.add(gluon.nn.Dense(3, in_units=3), gluon.nn.Dense(2, in_units=3))
    net.initialize(mx.init.One())
    return net


KINDS = ["trainer", "sharded", "sharded, ftml", "optimizer", *STORES]


def made(kind: str, net, **options):
    kind, _, optimizer = kind.partition(", ")
    plain = mx.optimizer.create(optimizer or "sgd", learning_rate=0.1)
    return make_trainer(kind, net.collect_params(), plain, **options)


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
    """Change only the values of a layer's parameters, which may differ between ranks."""
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
@pytest.mark.parametrize("kind", KINDS)
def test_one_ranks_parameter_change_is_an_error_on_all_ranks(kind, change, stale, rank, several):
    """Without the error, only one rank adds up gradients, or the other ranks wait forever."""
    if stale and kind in ("optimizer", *STORES):
        pytest.skip("needs a DistributedTrainer")
    net, options = net_of(), {"ignore_stale_grad": True} if stale else {}
    trainer = made(kind, net)
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
@pytest.mark.parametrize("kind", KINDS)
def test_training_is_right_after_equal_changes_of_parameters(kind, change, sparse, rank, size):
    if change in CHANGES[2:] and kind in ("sharded", "on store"):
        pytest.skip("needs a new trainer")
    if kind == "sharded, ftml" or (sparse and kind == "store"):
        pytest.skip("MXNet has no such optimizer for comparison, or refuses sparse gradients")
    nets = net_of(sparse), net_of(sparse)
    everyone = mx.nd.concat(*[words_of(r) for r in range(size)], dim=0)
    plain = gluon.Trainer(nets[1].collect_params(), "sgd", {"learning_rate": 0.1}, kvstore=None)
    trainer = made(kind, nets[0])
    for number in range(4):
        if number == 2:
            change(nets[0])
            change(nets[1])
        step(nets[0], trainer, words_of(rank))
        step(nets[1], plain, everyone, rows=size)
    assert_equal_on_all_ranks(weights(nets[0]))
    assert_close(weights(nets[0]), weights(nets[1]))


@pytest.mark.parametrize("kind", ["trainer", "optimizer", "store"])
def test_a_setting_of_only_one_rank_is_an_error_on_all_ranks(kind, rank, several):
    """Without the error, a rank sums another number of batches, or its store waits forever."""
    net, number = net_of(), int(rank == 1)
    if kind == "store":
        trainer = made(STORES[number], net)
    else:
        trainer = made(kind, net, backward_passes_per_step=1 + number)
    text = r"entry 5: .*rank.* 1.*: (backward_passes_per_step 2|update_on_kvstore True)"
    with pytest.raises(hvd.HvdliteError, match=text):
        for _ in range(2):
            step(net, trainer, words_of(rank))


def run_batches(kind: str, sizes_of_steps, **options):
    """Return a net and its trainer, after steps with these batch sizes of this rank."""
    net = net_of()
    trainer = made(kind, net, **options)
    for rows in sizes_of_steps:
        step(net, trainer, words_of(0), rows)
    mx.nd.waitall()
    return net, trainer


@pytest.mark.parametrize("steps", [0, 2], ids=["first step", "later step"])
@pytest.mark.parametrize("kind", KINDS)
def test_different_batch_sizes_are_an_error_on_all_ranks(kind, steps, rank, several):
    """Without the error, each rank divides by its own size, so that the weights drift apart."""
    net, trainer = run_batches(kind, [4] * steps)
    before, times = weights(net), hvd.size() if kind in STORES else 1
    own = "the same as in its last step" if steps else f"{4 * times}"
    text = f"disagree on the batch size of the step.*: rank.* {own}.*rank 1: {6 * times}.*the mean"
    fails(text, net, trainer, words_of(0), 6 if rank == 1 else 4)
    if steps:
        assert_close(weights(net), before, tolerance=0)


@pytest.mark.parametrize("kind", KINDS)
def test_batch_sizes_are_compared_anew_after_join(kind, rank, several):
    if kind.startswith("sharded"):
        pytest.skip("no rank may join during the steps of a ShardedTrainer")
    net, trainer = run_batches(kind, [4, 5] if rank == 0 else [4])
    hvd.join()
    hvd.broadcast_parameters(net.collect_params())
    for rows in (5, 5, 4):
        step(net, trainer, words_of(0), rows)
    mx.nd.waitall()
    hvd.join()
    fails("disagree on the batch size", net, trainer, words_of(0), 6 if rank == 1 else 4)


@pytest.mark.parametrize("kind", ["trainer", "sharded", "optimizer"])
def test_the_sum_of_a_steps_batch_sizes_is_compared(kind, rank, several):
    sizes = [3, 5] if rank == 1 else [4, 4]
    net, trainer = run_batches(kind, sizes * 2, backward_passes_per_step=2)
    step(net, trainer, words_of(0), 3 if rank == 1 else 4)
    fails("disagree on the batch size", net, trainer, words_of(0), 4)


@pytest.mark.parametrize("kind", ["trainer", "sharded", "store"])
def test_sizes_that_only_update_receives_are_not_compared(kind, rank):
    net, trainer = net_of(), None
    trainer = made(kind, net)
    for rows in (4, 4, 5, 4):
        with autograd.record():
            net(words_of(rank)).sum().backward()
        trainer.allreduce_grads()
        trainer.update(rows + (rank if rows == 5 else 0))
    mx.nd.waitall()
