"""Train with PyTorch or Keras, gather an object every 20 steps, and report the recorded steps."""

import os
import sys

import numpy as np
from jobs import report

import hvdlite as hvd
from hvdlite.monitor import watching

STEPS = 120


def torch_step():
    import torch

    import hvdlite.torch as hvd

    model = torch.nn.Linear(4, 4)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1))

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()

    return step


def keras_step():
    import keras

    import hvdlite.keras as hvd

    model = keras.Sequential([keras.layers.Dense(4)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    return lambda: model.train_on_batch(np.ones((2, 4)), np.ones((2, 4)))


hvd.init()
step = {"torch": torch_step, "keras": keras_step}[sys.argv[1]]()
for number in range(STEPS):
    step()
    if number % 20 == 19:
        hvd.allgather_object(number)
(own,) = [one for one in watching.Here(watching.job_of(str(os.getpid()))).look()
          if one.head["pid"] == os.getpid()]  # fmt: skip
report(hvd.rank(), steps=own.head["steps"])
