"""Gradients in shared memory: the same training bit for bit, or a clear word why not."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from nets import assert_equal_on_all_ranks, weights
from versions import no_sparse_gluon

import hvdlite as hvd

STEPS, ROWS = 6, 8


def convnet(**flags):
    mx.random.seed(4)
    net = gluon.nn.HybridSequential()
    net.add(
        gluon.nn.Conv2D(5, 3, activation="relu"),
        gluon.nn.BatchNorm(),
        gluon.nn.Dense(17, activation="tanh"),
        gluon.nn.Dense(3),
    )
    net.initialize(mx.init.Xavier())
    if flags:
        net.hybridize(**flags)
    net(mx.nd.ones((ROWS, 1, 8, 8))).wait_to_read()
    return net


def distributed(params):
    return hvd.DistributedTrainer(params, mx.optimizer.SGD(learning_rate=0.05, momentum=0.9))


def wrapped(params):
    optimizer = hvd.DistributedOptimizer(mx.optimizer.Adam(learning_rate=0.01))
    return gluon.Trainer(params, optimizer, kvstore=None)


def train(net, make_trainer, share: bool) -> dict:
    params = net.collect_params()
    trainer = make_trainer(params)
    moved = hvd.share_gradients(params.values()) if share else []
    trained = [param.name for param in params.values() if param.grad_req != "null"]
    assert sorted(moved) == (sorted(trained) if share else [])
    random = np.random.RandomState(hvd.rank())
    for _ in range(STEPS):
        data = mx.nd.array(random.uniform(size=(ROWS, 1, 8, 8)))
        with autograd.record():
            loss = (net(data) ** 2).sum()
        loss.backward()
        trainer.step(ROWS)
    return weights(net)


@pytest.mark.parametrize("make_trainer", [distributed, wrapped])
@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"static_alloc": False},
        {"static_alloc": True},
        {"static_alloc": True, "static_shape": True},
    ],
    ids=["imperative", "hybridized", "static_alloc", "static_shape"],
)
def test_training_is_the_same_bit_for_bit(flags, make_trainer):
    private = train(convnet(**flags), make_trainer, share=False)
    shared = train(convnet(**flags), make_trainer, share=True)
    assert_equal_on_all_ranks({k: v for k, v in shared.items() if "running" not in k})
    for (_, expected), (name, got) in zip(private.items(), shared.items()):
        np.testing.assert_array_equal(got, expected, err_msg=name)


def test_averages_in_place():
    net = gluon.nn.Dense(4, in_units=3, use_bias=False)
    net.initialize(mx.init.Zero())
    assert hvd.share_gradients(net.collect_params().values()) == [net.weight.name]
    trainer = distributed(net.collect_params())
    gradient = net.weight.grad()
    gradient[:] = hvd.rank()
    trainer.allreduce_grads()
    expected = np.full((4, 3), (hvd.size() - 1) / 2, "float32")
    np.testing.assert_array_equal(net.weight.grad().asnumpy(), expected)
    np.testing.assert_array_equal(gradient.asnumpy(), expected)


@no_sparse_gluon
def test_left_where_they_are():
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Embedding(5, 3, sparse_grad=True), gluon.nn.Dense(2, in_units=3))
    net.initialize()
    net[1].bias.grad_req = "null"
    assert hvd.share_gradients(net.collect_params().values()) == [net[1].weight.name]


def test_too_early_and_too_late():
    net = gluon.nn.Dense(2)
    net.initialize()
    with pytest.raises(ValueError, match=f"'{net.weight.name}' is not initialised"):
        hvd.share_gradients(net.collect_params().values())
    with autograd.record():
        loss = net(mx.nd.ones((1, 2))).sum()
    loss.backward()
    with pytest.raises(ValueError, match="before the first backward"):
        hvd.share_gradients(net.collect_params().values())


def test_ranks_with_other_networks():
    if hvd.size() == 1:
        pytest.skip("needs another rank")
    net = gluon.nn.Dense(2 + hvd.rank(), in_units=300)
    net.initialize()
    with pytest.raises(hvd.HvdliteError, match=r"gradients\d+: ranks disagree.*rank 1"):
        hvd.share_gradients(net.collect_params().values())
