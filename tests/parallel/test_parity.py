"""Training parity: LeNet on several ranks does what one process does on the joined batch."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from nets import assert_equal_on_all_ranks, largest_difference, make_trainer, set_weights, weights

import hvdlite as hvd

STEPS, ROWS = 30, 16  # rows: the batch of one rank
BOUND = 5e-5
CLIP = 0.05  # norm of the gradient of the batch's mean: below what is met, so it clips at each step


def lenet():
    """LeCun's, with his average pooling: it is smooth.

    With max pooling a difference of one bit in the first weights can decide which of two nearly
    equal pixels gets a gradient: one process alone then differs from itself by 0.07 (measured).
    """
    net = gluon.nn.HybridSequential()
    net.add(
        gluon.nn.Conv2D(20, 5, in_channels=1, activation="tanh"),
        gluon.nn.AvgPool2D(2, 2),
        gluon.nn.Conv2D(50, 5, in_channels=20, activation="tanh"),
        gluon.nn.AvgPool2D(2, 2),
        gluon.nn.Dense(128, in_units=800, activation="tanh"),
        gluon.nn.Dense(10, in_units=128),
    )
    net.initialize(mx.init.Zero())
    net(mx.nd.zeros((1, 1, 28, 28)))  # MXNet 2 does not believe in_channels
    set_weights(net, seed=3)
    for param in net.collect_params().values():  # uniform, of the size that Xavier gives
        param.set_data(param.data() * (0.0 if len(param.shape) == 1 else 0.2))
    net.hybridize(static_alloc=True, static_shape=True)
    return net


@pytest.fixture(scope="module")
def digits():
    """The handwritten digits of scikit-learn, 8x8, as images of 28x28."""
    datasets = pytest.importorskip("sklearn.datasets")
    images, labels = datasets.load_digits(return_X_y=True)
    images = np.kron(images.reshape(-1, 1, 8, 8) / 16, np.ones((1, 1, 3, 3)))
    images = np.pad(images, ((0, 0), (0, 0), (2, 2), (2, 2))).astype("float32")
    order = np.random.RandomState(0).permutation(len(images))
    return images[order], labels[order].astype("float32")


def optimizer():
    return mx.optimizer.SGD(learning_rate=0.1, momentum=0.9, wd=1e-3)


def train(net, trainer, digits, clip: bool, joined: bool) -> dict:
    images, labels = digits
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    rows = ROWS * hvd.size()
    for step in range(STEPS):
        batch = np.arange(step * rows, (step + 1) * rows) % len(images)
        if not joined:
            batch = batch[hvd.rank() * ROWS : (hvd.rank() + 1) * ROWS]
        with autograd.record():
            loss = loss_of(net(mx.nd.array(images[batch])), mx.nd.array(labels[batch]))
        loss.backward()
        if clip:
            trainer.allreduce_grads()
            gradients = [p.grad() for p in net.collect_params().values()]
            norm = gluon.utils.clip_global_norm(gradients, CLIP * len(batch))
            assert norm > CLIP * len(batch)
            trainer.update(len(batch))
        else:
            trainer.step(len(batch))
    return weights(net)


@pytest.mark.timeout(200, method="thread")
@pytest.mark.parametrize(
    "kind, clip",
    [("optimizer", False), ("trainer", False), ("trainer", True)],
    ids=["DistributedOptimizer", "DistributedTrainer", "clipping"],
)
def test_lenet(kind, clip, digits, parity, request):
    net, alone = lenet(), lenet()
    start = weights(net)
    trainer = make_trainer(kind, net.collect_params(), optimizer())
    trained = train(net, trainer, digits, clip, joined=False)
    plain = gluon.Trainer(alone.collect_params(), optimizer(), kvstore=None)
    expected = train(alone, plain, digits, clip, joined=True)
    assert largest_difference(expected, start) > (0.1 if clip else 1), "it has not trained at all"
    assert_equal_on_all_ranks(trained)
    parity(f"LeNet, {request.node.callspec.id}", trained, expected, BOUND)
