"""ShardedTrainer trains bitwise the same weights as DistributedTrainer."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from nets import backward, clear_gradients, convnet, images, weights
from trained import (
    RULES,
    arrays,
    assert_close,
    assert_equal_on_all_ranks,
    bits,
    gradients_of,
    one_step,
    trained_weights,
)
from versions import MXNET2

import hvdlite as hvd

STEPS, ROWS = 4, 6


@mx.optimizer.Optimizer.register
class OwnAdamW(mx.optimizer.Optimizer):
    """AdamW (Loshchilov and Hutter, ICLR 2019) with MXNet's operator; MXNet 1 has no class."""

    def create_state(self, index, weight):
        return mx.nd.zeros_like(weight), mx.nd.zeros_like(weight)

    def update(self, index, weight, grad, state):
        self._update_count(index)
        rescale = mx.nd.array([self.rescale_grad])
        mx.nd.contrib.adamw_update(
            weight, grad, *state, rescale, out=weight, lr=1.0, eta=self._get_lr(index),
            wd=self._get_wd(index), clip_gradient=self.clip_gradient or -1.0,
        )  # fmt: skip


pytestmark = pytest.mark.skipif(MXNET2, reason="MXNet 2's optimizers compute other bits")

FLAGS = [{}, {"static_alloc": True}, {"static_alloc": True, "static_shape": True}]


def trained(kind, optimizer, args, flags=None, clip=False, evaluate=False, **options) -> dict:
    net = convnet(flags)
    trainer = kind(net.collect_params(), optimizer, dict(args), **options)
    for step in range(STEPS):
        one_step(net, trainer, images(step), clip)
        if evaluate:  # an evaluation makes oneDNN change the layout of the weights in place
            net(mx.nd.ones((2, 8, 8, 8))).wait_to_read()
    assert_equal_on_all_ranks(trained_weights(net))
    return bits(net, trainer)


CLIPPED_OR_NOT = [
    ("sgd", {"learning_rate": 0.05, "clip_gradient": 0.1}),
    ("sgd", {"learning_rate": 0.05, "momentum": 0.9, "wd": 0.01}),
    ("nag", {"learning_rate": 0.05, "momentum": 0.9, "wd": 0.01, "clip_gradient": 0.1}),
    ("adam", {"learning_rate": 0.01, "wd": 0.01, "clip_gradient": 0.1}),
]
BY_MXNET = [
    ("nag", {"learning_rate": 0.05}),
    ("rmsprop", {"learning_rate": 0.01, "centered": True}),
    ("adagrad", {"learning_rate": 0.01}),
    ("adadelta", {}),
    ("adamax", {}),
    ("ftml", {}),
    ("ftrl", {}),
    ("signum", {"learning_rate": 0.01}),
    ("dcasgd", {"learning_rate": 0.01}),
    ("lars", {"learning_rate": 0.05, "momentum": 0.9}),
    ("lamb", {"learning_rate": 0.01}),
    ("ownadamw", {"learning_rate": 0.01, "wd": 0.01, "clip_gradient": 0.1}),
]


@pytest.mark.parametrize("optimizer, args", RULES + CLIPPED_OR_NOT + BY_MXNET)
def test_a_sharded_trainer_equals_a_distributed_trainer_bit_by_bit(optimizer, args):
    got = trained(hvd.ShardedTrainer, optimizer, args)
    assert_close(got, trained(hvd.DistributedTrainer, optimizer, args), 0)


@pytest.mark.parametrize("flags", FLAGS, ids=["imperative", "static_alloc", "static_shape"])
@pytest.mark.parametrize(
    "optimizer, args", [CLIPPED_OR_NOT[1], BY_MXNET[1]], ids=["rule", "by MXNet"]
)
@pytest.mark.parametrize("clip", [False, True], ids=["step", "clipped"])
def test_evaluation_between_steps_does_not_change_sharded_training(optimizer, args, flags, clip):
    got = trained(hvd.ShardedTrainer, optimizer, args, flags, clip, evaluate=True)
    assert_close(got, trained(hvd.DistributedTrainer, optimizer, args, flags, clip), 0)


def test_a_sharded_trainer_handles_frozen_sparse_and_added_gradients():
    def run(kind):
        mx.random.seed(3)
        net = gluon.nn.Sequential()
        net.add(gluon.nn.Embedding(20, 6, sparse_grad=True), gluon.nn.Dense(5), gluon.nn.Dense(4))
        net.initialize(mx.init.Uniform())
        net[1].collect_params().setattr("grad_req", "null")
        net[2].collect_params().setattr("grad_req", "add")
        trainer = kind(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9})
        for step in range(STEPS):
            for half in range(2):
                words = np.random.RandomState(10 * step + hvd.rank() + 5 * half).randint(0, 20, 7)
                backward(net, words)
            trainer.step(14)
            clear_gradients(net[2])
        return weights(net)

    assert_close(run(hvd.ShardedTrainer), run(hvd.DistributedTrainer), 0)


def test_a_sharded_trainer_keeps_float32_masters_of_float16_weights():
    def run(kind):
        w = gluon.Parameter("w", shape=(1001,), dtype="float16")
        w.initialize(mx.init.One())
        optimizer = mx.optimizer.SGD(learning_rate=0.1, momentum=0.9, multi_precision=True)
        trainer = kind([w], optimizer)
        for step in range(STEPS):
            with autograd.record():
                (w.data() * (hvd.rank() + step * 0.37)).sum().backward()
            trainer.step(1)
        own = [w.data(), *arrays(trainer._updaters[0].states[0])]
        return {i: array.asnumpy() for i, array in enumerate(own)}

    assert_close(run(hvd.ShardedTrainer), run(hvd.DistributedTrainer), 0)


@pytest.mark.parametrize("most", [0.5, 1e6], ids=["clipped", "as it is"])
def test_clip_global_norm_gives_gluons_norm_on_every_rank(most, size):
    def run(clip):
        net = convnet()
        trainer = hvd.ShardedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        norms = []
        for step in range(STEPS):
            backward(net, images(step))
            trainer.allreduce_grads()
            norms.append(clip(gradients_of(net), most))
            trainer.update(ROWS)
        assert_equal_on_all_ranks(trained_weights(net))
        return norms, trained_weights(net).values()

    norms, ours = run(hvd.clip_global_norm)
    expected, theirs = run(gluon.utils.clip_global_norm)
    assert hvd.allgather_object(norms) == [norms] * size
    np.testing.assert_allclose(norms, expected, rtol=1e-5)
    for w, other in zip(ours, theirs):
        np.testing.assert_allclose(w, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("array", [mx.nd.array, mx.np.array], ids=["nd", "np"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_clip_global_norm_takes_float16_and_numpy_arrays(array, dtype):
    gradients = [array([300.0] * 3).astype(dtype), array([[-300.0]]).astype(dtype)]
    assert hvd.clip_global_norm(gradients, 6.0) == 600
    for each in gradients:
        np.testing.assert_allclose(np.abs(each.asnumpy()), 3, rtol=1e-3)


def test_clip_global_norm_warns_of_nan_and_refuses_an_empty_list():
    with pytest.warns(UserWarning, match="nan or inf"):
        assert hvd.clip_global_norm([mx.nd.array([np.inf, 1, 2])], 1.0) == np.inf
    with pytest.raises(ValueError, match="arrays is empty"):
        hvd.clip_global_norm([], 1.0)


def test_join_during_a_sharded_step_is_an_error(rank, size, several):
    """The other ranks get the error; afterwards collectives work again."""
    w = gluon.Parameter("w", shape=(1001,))
    w.initialize(mx.init.One())
    trainer = hvd.ShardedTrainer([w], "sgd", {"learning_rate": 0.1})
    for step in range(2):
        if step == 1 and rank == 0:
            break
        with autograd.record():
            w.data().sum().backward()
        trainer.step(1)
        if step == 0:
            w.data().wait_to_read()
            continue
        with pytest.raises(mx.MXNetError, match="rank 0 already joined"):
            w.data().wait_to_read()
    hvd.join()
    assert hvd.allreduce(mx.nd.ones((2,)), op=hvd.Sum).asnumpy().tolist() == [size] * 2
