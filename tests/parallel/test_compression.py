"""Compression of gradients: fp16, none, and one that the user writes."""

import mxnet as mx
import numpy as np
import pytest
from nets import (
    backward,
    batch_of,
    dense_net,
    gradients,
    make_trainer,
    momentum_sgd,
    plain_trainer,
    train,
)

import hvdlite as hvd


class Halved:
    """Sends half of the gradient, and counts."""

    calls = 0

    @staticmethod
    def compress(tensor):
        Halved.calls += 1
        return tensor / 2, "context"

    @staticmethod
    def decompress(tensor, context):
        assert context == "context"
        return tensor * 2


@pytest.mark.parametrize("name", ["sgd", "adam", "lamb", "rmsprop"])
def test_each_gradient_is_sent_once_a_step(name):
    """Also where update_multi_precision() calls update(), and where it takes lists."""
    net = dense_net()
    optimizer = hvd.DistributedOptimizer(mx.optimizer.create(name), compression=Halved)
    Halved.calls = 0
    train(net, plain_trainer(net, optimizer), steps=3)
    assert Halved.calls == 3 * len(net.collect_params().keys())


def test_fp16_sums_are_rounded_once(size):
    """What comes back is the average of the rounded gradients, rounded to float16."""
    net = dense_net()
    trainer = make_trainer(
        "trainer", net.collect_params(), momentum_sgd(), compression=hvd.Compression.fp16
    )
    backward(net, batch_of(hvd.rank()))
    sent = {name: g.astype("float16") for name, g in gradients(net).items()}
    trainer.allreduce_grads()
    everyone = hvd.allgather_object(sent)
    for name, averaged in gradients(net).items():
        total = sum(theirs[name].astype("float64") for theirs in everyone)
        assert averaged.dtype == np.float32
        np.testing.assert_allclose(averaged, total / size, rtol=2**-10, atol=1e-7)
        np.testing.assert_array_equal(averaged, averaged.astype("float16"))


def test_fp16_leaves_other_dtypes_alone():
    for dtype in ("float16", "int32", "uint8"):
        x = mx.nd.ones((2,), dtype=dtype)
        sent, context = hvd.Compression.fp16.compress(x)
        assert sent is x
        assert hvd.Compression.fp16.decompress(sent, context) is x
    x = mx.nd.ones((2,), dtype="float64")
    sent, context = hvd.Compression.fp16.compress(x)
    assert sent.dtype == np.float16
    assert hvd.Compression.fp16.decompress(sent, context).dtype == np.float64
