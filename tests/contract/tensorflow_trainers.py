"""Trainers for TensorFlow: gradient tapes, eager and traced, and optimizers for sessions."""

import copy

import tensorflow as tf
from one_process import MOMENTUM, RATE
from trainers import EVERY, Trainer, trainer

import hvdlite.tensorflow as hvd

v1 = tf.compat.v1


def loss_of(weights, x, layers, factor):
    w0, b0, w1, b1 = weights
    hidden = tf.tanh(x @ w0 + b0)
    out = hidden if layers == 1 else hidden @ w1 + b1
    return tf.reduce_mean(tf.reduce_sum(out**2, -1)) * factor


class OfTensorFlow(Trainer):
    hvd = hvd
    takes = tuple(option for option in EVERY if option != "backward_passes_per_step")
    codecs = ("own", "fp16")
    scales_loss = skips_layers = False
    errors = (hvd.HvdliteError, tf.errors.OpError)


@trainer
class Tape(OfTensorFlow):
    traced = numbered = False

    def __init__(self, weights, **options) -> None:
        self.variables, self.options = [tf.Variable(w) for w in weights], options
        self.make()

    def make(self) -> None:
        self.optimizer = tf.keras.optimizers.SGD(RATE, MOMENTUM)
        self.optimizer.build(self.variables)
        self.freeze(())

    def another(self):
        other = copy.copy(self)
        other.make()
        return other

    def step(self, x):
        with tf.GradientTape() as tape:
            loss = loss_of(self.variables, x, 2, 1.0)
        tape = hvd.DistributedGradientTape(tape, **self.options)
        grads = tape.gradient(loss, self.trained)
        self.optimizer.apply_gradients(zip(grads, self.trained))

    def freeze(self, numbers) -> None:
        self.trained = [v for i, v in enumerate(self.variables) if i not in numbers]
        self.run = tf.function(self.step, reduce_retracing=True) if self.traced else self.step

    def train(self, x) -> None:
        self.run(tf.constant(x))

    def weights(self) -> list:
        return [v.numpy() for v in self.variables]


@trainer
class TracedTape(Tape):
    traced = graphs = True


@trainer
class Session(OfTensorFlow):
    thaws, graphs = False, True

    def __init__(self, weights, **options) -> None:
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.variables = [
                v1.get_variable(f"w{i}", initializer=w) for i, w in enumerate(weights)
            ]
            self.x = v1.placeholder(tf.float32, [None, 6])
            self.loss = loss_of(self.variables, self.x, 2, 1.0)
            self.session, self.options = v1.Session(), options
            self.session.run(v1.global_variables_initializer())
        self.freeze(())

    def freeze(self, numbers) -> None:
        trained = [v for i, v in enumerate(self.variables) if i not in numbers]
        with self.graph.as_default():
            known = set(v1.global_variables())
            plain = v1.train.MomentumOptimizer(RATE, MOMENTUM)
            self.step = hvd.DistributedOptimizer(plain, **self.options).minimize(
                self.loss, var_list=trained
            )
            self.session.run(v1.variables_initializer(set(v1.global_variables()) - known))

    def another(self):
        other = copy.copy(self)
        other.freeze(())
        return other

    def train(self, x) -> None:
        self.session.run(self.step, {self.x: x})

    def weights(self) -> list:
        return self.session.run(self.variables)
