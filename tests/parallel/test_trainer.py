"""Trainers for MXNet: they train as one process does; tests/contract tests all frameworks."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from nets import (
    backward,
    backward_of,
    batch_of,
    dense_net,
    gradients,
    joined_batch,
    move_to,
    set_weights,
    train,
    weights,
)
from optimizers import STORES, every_kind, make_trainer, momentum_sgd, plain_trainer, sgd
from trained import assert_close, assert_equal_on_all_ranks
from versions import MXNET2

import hvdlite as hvd
from hvdlite.mxnet.push import InPlace
from hvdlite.training.plan import split_by_bytes


def aggregated(number: int):
    optimizer = sgd()
    optimizer.aggregate_num = number
    return optimizer


OPTIMIZERS = {
    "sgd": sgd,
    "sgd, not aggregated": lambda: aggregated(0),
    "sgd, aggregated by 3": lambda: aggregated(3),
    "adam": lambda: mx.optimizer.Adam(learning_rate=0.01, wd=0.01),
    "adagrad": lambda: mx.optimizer.create("adagrad"),
    "signum": lambda: mx.optimizer.create("signum"),
    "lamb": lambda: mx.optimizer.LAMB(learning_rate=0.01, wd=0.01),
    "nag": lambda: mx.optimizer.NAG(learning_rate=0.1, momentum=0.9),
    "rmsprop": lambda: mx.optimizer.RMSProp(learning_rate=0.01),
    "ftml": lambda: mx.optimizer.FTML(learning_rate=0.01),
    "lars": lambda: mx.optimizer.LARS(learning_rate=0.1, momentum=0.9),
    "clip_gradient": lambda: sgd(clip_gradient=0.05),
    "rescale_grad": lambda: sgd(rescale_grad=0.25),
    "multi_precision": lambda: sgd(multi_precision=True),
    "lr_scheduler": lambda: sgd(lr_scheduler=mx.lr_scheduler.FactorScheduler(2, 0.5, base_lr=0.2)),
}


@every_kind
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_with_any_optimizer_equals_one_process_on_the_joined_batch(kind, name):
    """The ten tensors do not divide evenly into SGD's groups of four or three."""
    if MXNET2 and kind == "on store" and name == "lamb":
        pytest.skip("MXNet 2 has no optimizer on a store that updates several weights at once")
    units, make = (8, 7, 6, 5, 4), OPTIMIZERS[name]
    net, alone = dense_net(units), dense_net(units)
    trained = train(net, make_trainer(kind, net.collect_params(), make()))
    # Adam and similar rules divide by the root of a squared gradient: near 0, rounding errors grow.
    assert_close(trained, train(alone, plain_trainer(alone, make()), joined=True), 2e-4)
    assert_equal_on_all_ranks(trained)


@pytest.mark.parametrize("kind", ["trainer", "optimizer", "sharded", *STORES])
def test_changed_rates_and_batch_sizes_give_the_weights_of_one_process(kind):
    """lr_mult, wd_mult, a schedule and set_learning_rate() change the learning rate."""

    def run(trainer_of, joined: bool) -> dict:
        net = dense_net()
        params = net._collect_params_with_prefix()
        params["0.weight"].lr_mult, params["0.bias"].lr_mult = 0.0, 0.1
        params["1.weight"].wd_mult, params["1.bias"].wd_mult = 3.0, 0.0
        schedule = mx.lr_scheduler.FactorScheduler(2, 0.5, base_lr=0.1)
        for optimizer in (sgd(), mx.optimizer.Adam(learning_rate=0.01, lr_scheduler=schedule)):
            trainer = trainer_of(net.collect_params(), optimizer)
            for step in range(4):
                x = joined_batch(step, 4 + step) if joined else batch_of(hvd.rank(), step, 4 + step)
                backward(net, x)
                trainer.step(len(x))
                if optimizer.lr_scheduler is None:
                    trainer.set_learning_rate(0.1 / (step + 1))
        return weights(net)

    trained = run(lambda params, optimizer: make_trainer(kind, params, optimizer), False)
    alone = run(lambda params, optimizer: gluon.Trainer(params, optimizer, kvstore=None), True)
    assert_close(trained, alone, 1e-4)
    np.testing.assert_array_equal(trained["0.weight"], weights(dense_net())["0.weight"])


@every_kind
def test_training_from_saved_states_equals_uninterrupted_training(kind, tmp_path_factory):
    """In Horovod loading states can silently drop the allreduce, so that ranks drift apart.

    One process without hvdlite can also load the states of a trainer or a store.
    """
    file = hvd.broadcast_object(str(tmp_path_factory.mktemp("states") / "states"))
    net, alone = dense_net(), dense_net()
    first, again = (make_trainer(kind, net.collect_params(), sgd()) for _ in range(2))
    plain = plain_trainer(alone, sgd())
    train(net, first)
    train(alone, plain, joined=True)
    if hvd.rank() == 0:
        first.save_states(file)
    hvd.barrier()
    again.load_states(file)
    with open(file, "rb") as states:
        assert (b"hvdlite" in states.read()) == (kind == "optimizer")
    if kind != "optimizer":
        plain.load_states(file)
    assert_close(train(net, again), train(alone, plain, joined=True), 1e-4)
    assert_equal_on_all_ranks(weights(net))


CONTEXTS = [mx.cpu(0), mx.cpu(1)]


@pytest.mark.parametrize(
    "kind, passes", [("trainer", 1), ("trainer", 2), ("optimizer", 1), ("optimizer", 2),
                     *((kind, 1) for kind in STORES)]
)  # fmt: skip
def test_several_contexts_in_a_process_train_as_one(kind, passes, rank):
    """Two contexts have unequal parts of a rank's batch; the ranks average the sum of both."""
    net, alone = dense_net(), dense_net()
    move_to(net, CONTEXTS)
    set_weights(net, seed=rank + 1)
    hvd.broadcast_parameters(net.collect_params())
    options = {} if passes == 1 else {"backward_passes_per_step": passes}
    trainer, plain = (
        make_trainer(kind, net.collect_params(), sgd(), **options),
        plain_trainer(alone, sgd()),
    )
    for step in range(3):
        for i in range(passes):
            x = batch_of(rank, 10 * step + i, rows=7)
            parts = zip((x[:2], x[2:]), CONTEXTS)
            backward_of([(net, mx.nd.array(part, ctx=context)) for part, context in parts])
            trainer.step(7)
        joined = np.concatenate([joined_batch(10 * step + i, 7) for i in range(passes)])
        backward(alone, joined)
        plain.step(len(joined))
    for name, param in net._collect_params_with_prefix().items():
        first, second = (data.asnumpy() for data in param.list_data())
        np.testing.assert_array_equal(first, second, name)
        np.testing.assert_allclose(first, weights(alone)[name], 2e-5, 2e-5, err_msg=name)
        assert_equal_on_all_ranks({name: first})


def test_a_trainer_takes_a_list_of_parameters():
    """Other tests pass a dict or what collect_params() returns."""
    net, alone = dense_net(), dense_net()
    trained = train(net, hvd.DistributedTrainer(list(net.collect_params().values()), sgd()))
    assert_close(trained, train(alone, plain_trainer(alone, sgd()), joined=True))


@pytest.mark.parametrize(
    "sums, options, factor",
    [
        ("1", {}, lambda size: 1),
        ("1", {"gradient_predivide_factor": 2.0}, lambda size: 2),
        ("1", {"num_groups": 2}, lambda size: 1),
        ("0", {"op": hvd.Average}, lambda size: size),
        ("0", {"op": hvd.Sum}, lambda size: 1),
    ],
)
def test_allreduce_grads_gives_averages_or_sums_if_the_script_asks_for_sums(
    sums, options, factor, size, monkeypatch
):
    """allreduce_grads() gives averages, or sums if `op` or HVDLITE_HOROVOD_SUMS=1 asks for them.
    With HVDLITE_HOROVOD_SUMS=1 the weights are still updated with averages."""
    monkeypatch.setenv("HVDLITE_HOROVOD_SUMS", sums)
    net, alone = dense_net(), dense_net()
    trainer = hvd.DistributedTrainer(net.collect_params(), sgd(), **options)
    backward(net, batch_of(hvd.rank()))
    trainer.allreduce_grads()
    backward(alone, joined_batch())
    got = {name: grad * factor(size) for name, grad in gradients(net).items()}
    assert_close(got, gradients(alone))
    net, alone = dense_net(), dense_net()
    if sums == "1":
        trained = train(net, hvd.DistributedTrainer(net.collect_params(), sgd(), **options))
        assert_close(trained, train(alone, plain_trainer(alone, sgd()), joined=True))


def test_a_trainer_unwraps_a_distributed_optimizer_with_a_warning():
    net, alone = dense_net(), dense_net()
    with pytest.warns(UserWarning, match="averages by itself"):
        trainer = hvd.DistributedTrainer(net.collect_params(), hvd.DistributedOptimizer(sgd()))
    assert not isinstance(trainer._optimizer, hvd.DistributedOptimizer)
    assert_close(train(net, trainer), train(alone, plain_trainer(alone, sgd()), joined=True))


def test_hvdlite_guard_steps_makes_a_trainer_check_gradients(monkeypatch, rank):
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


@pytest.mark.parametrize("name", ["sgd", "adam", "lamb", "rmsprop"])
def test_each_gradient_is_sent_once_per_step(name):
    """Optimizers differ: some call update() for each weight, others pass lists of weights."""
    net = dense_net()
    trainer = plain_trainer(net, hvd.DistributedOptimizer(mx.optimizer.create(name)))
    train(net, trainer, steps=1)  # the first step also compares all ranks' parameters
    before = hvd.stats()["tensors"]
    train(net, trainer, steps=3)
    assert hvd.stats()["tensors"] - before == 3 * len(net.collect_params().keys())


KIB = 1024


@pytest.mark.parametrize(
    "sizes, runs",
    [
        ([], []),
        ([5], [[5]]),
        ([KIB, KIB, 4096 * KIB, KIB], [[KIB, KIB], [4096 * KIB, KIB]]),
        ([600 * KIB] * 5, [[600 * KIB], [600 * KIB] * 2, [600 * KIB] * 2]),
        ([KIB] * 1024, [[KIB] * 1024]),
        ([KIB] * 1025, [[KIB], [KIB] * 1024]),
        ([1024 * KIB] * 3, [[1024 * KIB]] * 3),
    ],
)
def test_gradients_form_groups_of_a_mebibyte_beginning_with_the_last_layer(sizes, runs):
    assert split_by_bytes(sizes, sizes) == runs


def test_a_trainer_submits_a_group_as_one_operation(monkeypatch):
    """Two weights of 512 KiB and the biases sorted before them by name form a group."""
    net = dense_net((1024, 128, 1024, 128, 1024))
    trainer = hvd.DistributedTrainer(net.collect_params(), momentum_sgd())
    train(net, trainer)
    sent, push = [], InPlace.push
    monkeypatch.setattr(
        InPlace, "push", lambda self, arrays: sent.append(len(arrays)) or push(self, arrays)
    )
    trainer._gradients.forget()  # the prepared calls, which use the original InPlace.push
    trainer.allreduce_grads()
    mx.nd.waitall()
    assert sent == [3, 4, 3]


@pytest.mark.parametrize("kind", ["trainer", "optimizer"])
def test_two_optimizers_of_one_net_both_average_over_all_ranks(kind):
    net, alone = dense_net(), dense_net()
    pairs = [
        (make_trainer(kind, net.collect_params(), sgd()), plain_trainer(alone, sgd()))
        for _ in range(2)
    ]
    for trainer, plain in pairs * 2:
        expected = train(alone, plain, steps=1, joined=True)
        assert_close(train(net, trainer, steps=1), expected)
    assert_equal_on_all_ranks(weights(net))
