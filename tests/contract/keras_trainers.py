"""A trainer for Keras 3: DistributedOptimizer, on the backend that KERAS_BACKEND names."""

import copy

import keras
import numpy as np
from one_process import MOMENTUM, RATE
from trainers import Trainer, trainer

import hvdlite.keras as hvd


@trainer
class KerasOptimizer(Trainer):
    hvd = hvd
    codecs = ("own", "fp16")
    skips_layers = thaws = False
    sums_passes = graphs = True
    loss_scale = False
    errors = (Exception,)  # each backend raises its own errors

    def __init__(self, weights, **options) -> None:
        hidden = weights[1].size
        layers = [keras.layers.Dense(hidden, activation="tanh"), keras.layers.Dense(4)]
        self.model = keras.Sequential([keras.Input((6,)), *layers])
        self.model.set_weights(weights)
        self.options, self.optimizer = options, None
        self.compile()

    def compile(self) -> None:
        if self.optimizer is None:
            optimizer = keras.optimizers.SGD(RATE, MOMENTUM)
            if self.loss_scale:
                optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=8.0)
            self.optimizer = hvd.DistributedOptimizer(optimizer, **self.options)
        self.model.compile(self.optimizer, self.loss)

    @staticmethod
    def loss(factor, y):
        return keras.ops.mean(keras.ops.sum(y**2, -1)) * keras.ops.mean(factor)

    def another(self):
        other = copy.copy(self)
        other.optimizer = None
        other.compile()
        return other

    def train(self, *passes, factor=1) -> None:
        if self.model.optimizer is not self.optimizer:
            self.compile()
        for x in passes:
            self.model.train_on_batch(x, np.full((len(x), 1), factor, np.float32))

    def scale_loss(self) -> None:
        self.loss_scale, self.optimizer = True, None
        self.compile()

    def freeze(self, numbers) -> None:
        for i, layer in enumerate(self.model.layers):
            layer.trainable = 2 * i not in numbers
        self.optimizer = None
        self.compile()

    def weights(self) -> list:
        return [w.copy() for w in self.model.get_weights()]
