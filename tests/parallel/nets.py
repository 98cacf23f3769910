"""Networks, data and training loops of the tests; each is the same on every rank."""

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

import hvdlite as hvd


def dense_net(units=(8, 4), seed: int = 1, in_units: int = 6):
    """Return a net whose weights depend only on the seed, not on blocks that were made before."""
    net = gluon.nn.HybridSequential()
    for n in units:
        net.add(gluon.nn.Dense(n, activation="tanh", in_units=in_units))
        in_units = n
    net.initialize()
    set_weights(net, seed)
    return net


def convnet(flags=None):
    """Return a net for images of 8 channels; its first forward initializes the weights."""
    mx.random.seed(4)
    net = gluon.nn.HybridSequential()
    net.add(
        gluon.nn.Conv2D(16, 3, activation="relu"),
        gluon.nn.BatchNorm(),
        gluon.nn.Dense(17, activation="tanh"),
        gluon.nn.Dense(3),
    )
    net.initialize(mx.init.Xavier())
    if flags:
        net.hybridize(**flags)
    return net


def images(step: int, rows: int = 6):
    return mx.nd.array(batch_of(hvd.rank(), step, rows, 8 * 64).reshape(rows, 8, 8, 8))


def set_weights(net, seed: int) -> None:
    random = np.random.RandomState(seed)
    for param in net._collect_params_with_prefix().values():
        param.set_data(mx.nd.array(random.uniform(-0.5, 0.5, param.shape)))


def clear_gradients(net) -> None:
    for param in net.collect_params().values():
        if param.grad_req != "null":
            for grad in param.list_grad():
                grad[:] = 0


def move_to(net, contexts) -> None:
    for param in net.collect_params().values():
        param.reset_ctx(contexts)


def weights(net) -> dict:
    params = net._collect_params_with_prefix()
    return {name: param.data().asnumpy() for name, param in params.items()}


def gradients(net) -> dict:
    params = net._collect_params_with_prefix()
    return {n: p.grad().asnumpy() for n, p in params.items() if p.grad_req != "null"}


def batch_of(rank: int, step: int = 0, rows: int = 4, columns: int = 6):
    random = np.random.RandomState(100 * step + rank)
    return random.randn(rows, columns).astype("float32")


def joined_batch(step: int = 0, rows: int = 4, columns: int = 6):
    return np.concatenate([batch_of(r, step, rows, columns) for r in range(hvd.size())])


def backward(net, x) -> None:
    """Compute the gradient of a loss that is summed over the batch, as a Trainer expects."""
    backward_of([(net, x)])


def backward_of(pairs) -> None:
    """Compute the gradient of the sum of the losses of several (net, batch) pairs."""
    pairs = [(net, x if isinstance(x, mx.nd.NDArray) else mx.nd.array(x)) for net, x in pairs]
    with autograd.record():
        losses = [(net(x) ** 2).sum() for net, x in pairs]
    autograd.backward(losses)


def train(net, trainer, steps: int = 4, joined=False, rows: int = 4, columns: int = 6) -> dict:
    """Train on this rank's batches or, if `joined`, on the concatenated batches of all ranks."""
    for step in range(steps):
        rank = hvd.rank()
        x = joined_batch(step, rows, columns) if joined else batch_of(rank, step, rows, columns)
        backward(net, x)
        trainer.step(len(x))
    return weights(net)
