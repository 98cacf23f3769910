"""Elastic training by Keras's fit. argv: the rank that is killed, after which batch of 12.

At the end those that are left train once more, alone, from the commit they went on from: the same
bits.
"""

import os
import signal
import sys

import keras
import numpy as np
from jobs import report

import hvdlite.keras as hvd

dead, when = int(sys.argv[1]), int(sys.argv[2])
EPOCHS, STEPS, BATCH = 3, 4, 4
hvd.init()
first = hvd.rank()
x = np.random.RandomState(0).rand(STEPS * BATCH * hvd.size(), 6).astype("float32")


class Killer(keras.callbacks.Callback):
    batches = 0

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1
        if first == dead and self.batches == when:
            os.kill(os.getpid(), signal.SIGKILL)


def make():
    keras.utils.set_random_seed(hvd.rank())  # sync() makes them equal
    layers = [keras.layers.Dense(300), keras.layers.BatchNormalization(), keras.layers.Dense(6)]
    model = keras.Sequential([keras.Input((6,)), *layers])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9))
    model.compile(optimizer, "mse", metrics=["mae"])
    return hvd.elastic.KerasState(model, epoch=0, batch=0)


def train(state):
    own = x[hvd.rank() :: hvd.size()]
    callbacks = [
        killer,
        hvd.elastic.UpdateEpochStateCallback(state),
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.CommitStateCallback(state, 2),
    ]
    while state.epoch < EPOCHS:  # one at a time: of the first some batches may be done
        rows = own[BATCH * state.batch :]
        state.model.fit(rows, rows, BATCH, 1, callbacks=callbacks, shuffle=False, verbose=0)


def bits(state):
    state.save()
    return [*state._saved["model"], *state._saved["optimizer"]]


went_on, killer, state = [], Killer(), make()
hvd.elastic.run(lambda state: (went_on.append(state._saved), train(state)))(state)
again = make()
again._saved = went_on[-1]
again.restore()
train(again)
for mine, theirs in zip(bits(state), bits(again)):
    assert np.array_equal(mine, theirs)
report(first, went_on=[(s["epoch"], s["batch"]) for s in went_on], size=hvd.size())
