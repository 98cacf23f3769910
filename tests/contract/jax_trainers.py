"""Trainers for JAX: DistributedOptimizer with Optax, inside and outside a jitted program."""

import jax
import numpy as np
import optax
from one_process import MOMENTUM, RATE
from trainers import Trainer, trainer

import hvdlite.jax as hvd


def loss_of(weights, x, factor):
    w0, b0, w1, b1 = weights
    out = jax.numpy.tanh(x @ w0 + b0) @ w1 + b1
    return (out**2).sum(-1).mean() * factor


@trainer
class InJit(Trainer):
    hvd = hvd
    takes = ("op", "gradient_predivide_factor", "compression", "process_set")
    codecs = ("own", "fp16")
    skips_layers = thaws = scales_loss = freezes = False
    # jaxlib may raise any of these
    errors = (hvd.HvdliteError, jax.errors.JaxRuntimeError, ValueError)
    compiled = True

    def __init__(self, weights, **options) -> None:
        self.optimizer = hvd.DistributedOptimizer(optax.sgd(RATE, MOMENTUM), **options)
        self.now = [jax.numpy.asarray(w) for w in weights]
        self.state = self.optimizer.init(self.now)
        self.step = jax.jit(self.update) if self.compiled else self.update

    def update(self, weights, state, x, factor):
        grads = jax.grad(loss_of)(weights, x, factor)
        updates, state = self.optimizer.update(grads, state, weights)
        return optax.apply_updates(weights, updates), state

    def train(self, *passes, factor=1) -> None:
        for x in passes:
            self.now, self.state = self.step(self.now, self.state, x, np.float32(factor))

    def follow(self, root: int) -> None:
        self.now, self.state = hvd.broadcast((self.now, self.state), root)

    def weights(self) -> list:
        return [np.array(w) for w in self.now]


@trainer
class OutsideJit(InJit):
    compiled = False
