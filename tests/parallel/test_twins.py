"""Models trained on all ranks and their twins in one process: a GAN, and uneven batches.

An Embedding's twin is in test_sparse.py, SyncBatchNorm's in test_sync_batch_norm.py, LeNet's in
test_parity.py.
"""

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from nets import (
    assert_equal_on_all_ranks,
    backward,
    batch_of,
    both_kinds,
    dense_net,
    make_trainer,
    plain_trainer,
    weights,
)

import hvdlite as hvd

ROWS = 6  # of one rank's batch


# ---- a GAN ----


def adam():
    return mx.optimizer.Adam(learning_rate=0.02, beta1=0.5)


def draw(step: int, columns: int, kind: int, ranks) -> mx.nd.NDArray:
    batches = [
        np.random.RandomState([step, kind, rank]).normal(kind, 1, (ROWS, columns)) for rank in ranks
    ]
    return mx.nd.array(np.concatenate(batches))


def train_gan(make, ranks, steps: int = 12) -> dict:
    """Each step trains the critic on real and on made-up rows, then the generator through it."""
    generator, critic = dense_net((8, 3), in_units=4), dense_net((8, 1), seed=2, in_units=3)
    trainers = [make(net, adam()) for net in (generator, critic)]
    loss_of = gluon.loss.SigmoidBCELoss()
    true, false = mx.nd.ones((ROWS * len(ranks), 1)), mx.nd.zeros((ROWS * len(ranks), 1))
    for step in range(steps):
        real, noise = draw(step, 3, 1, ranks), draw(step, 4, 0, ranks)
        with autograd.record():
            made_up = generator(noise).detach()
            loss = loss_of(critic(real), true) + loss_of(critic(made_up), false)
        loss.backward()
        trainers[1].step(len(real))
        with autograd.record():
            loss = loss_of(critic(generator(noise)), true)
        loss.backward()
        trainers[0].step(len(real))
    nets = {"generator": generator, "critic": critic}
    return {f"{of}.{name}": w for of, net in nets.items() for name, w in weights(net).items()}


@both_kinds
def test_gan_with_two_trainers(kind, rank, size, parity):
    trained = train_gan(lambda net, adam: make_trainer(kind, net.collect_params(), adam), [rank])
    expected = train_gan(plain_trainer, range(size))
    assert_equal_on_all_ranks(trained)
    parity(f"GAN, {kind}", trained, expected, 1e-4)


# ---- uneven batches ----


def batches_of(rank: int, epoch: int) -> int:
    """Other ranks have the most in each epoch."""
    return 2 + 3 * ((rank + epoch) % hvd.size())


def sgd():
    return mx.optimizer.SGD(learning_rate=0.05, momentum=0.9, wd=0.01)


def train_with_join(net, trainer, rank: int, epochs: int) -> dict:
    for epoch in range(epochs):
        for step in range(batches_of(rank, epoch)):
            backward(net, batch_of(rank, 100 * epoch + step, ROWS))
            trainer.step(ROWS)
        last = hvd.join()  # has taken every step: what the others have missed they get from it
        hvd.broadcast_parameters(net.collect_params(), root_rank=last)
        hvd.broadcast_trainer_states(trainer, root_rank=last)
    return weights(net)


def train_alone(net, trainer, size: int, epochs: int) -> dict:
    """Each step takes the batches of those ranks that have one, joined."""
    for epoch in range(epochs):
        for step in range(max(batches_of(r, epoch) for r in range(size))):
            ranks = [r for r in range(size) if step < batches_of(r, epoch)]
            x = np.concatenate([batch_of(r, 100 * epoch + step, ROWS) for r in ranks])
            backward(net, x)
            trainer.step(len(x))
    return weights(net)


@both_kinds
def test_uneven_batches_with_join(kind, rank, size, parity):
    net, alone = dense_net(), dense_net()
    trainer = make_trainer(kind, net.collect_params(), sgd())
    trained = train_with_join(net, trainer, rank, epochs=3)
    expected = train_alone(alone, plain_trainer(alone, sgd()), size, epochs=3)
    assert_equal_on_all_ranks(trained)
    parity(f"join, {kind}", trained, expected, 5e-5)
