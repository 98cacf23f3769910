"""Elastic training of a model. argv: library, rank to kill, when it dies, how.

The rank dies in one of 12 steps; with Keras, after a batch. `how`: with PyTorch "in backward" or
"after backward", with Gluon the trainer. With "in backward", the killed rank has submitted some
gradients of the step; with "after backward" and with DistributedTrainer, it has submitted all. At
the end the survivors load the commit that they went on from, train again, and must get the same
bits.
"""

import importlib
import os
import signal
import sys

import numpy as np
from jobs import report

library, dead, when, how = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
STEPS, BATCH = 12, 4
hvd = importlib.import_module("hvdlite" if library == "gluon" else f"hvdlite.{library}")
hvd.init()
first = hvd.rank()
rows = np.random.RandomState(0).uniform(size=(STEPS * BATCH * hvd.size(), 6)).astype("f4")


def die(*_) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Model:
    """Training in steps; every second step is committed."""

    def train(self, state, until: int = STEPS) -> None:
        while state.step < until:
            for i, batch in enumerate(self.batches(state.sampler)):
                dies = first == dead and state.step == when
                self.step(state, batch, dies)
                state.sampler.record_batch(i, BATCH)
                state.step += 1
                if state.step % 2 == 0:
                    state.commit()
                if state.step >= until:
                    break
            else:
                state.epoch += 1
                state.sampler.set_epoch(state.epoch)

    def at(self, saved: dict):
        return saved["step"]


class Gluon(Model):
    """Training with Gluon; `how` names the trainer."""

    def make(self):
        mx.random.seed(hvd.rank())  # sync() makes the weights equal
        net = mx.gluon.nn.HybridSequential()
        net.add(
            mx.gluon.nn.HybridLambda(lambda F, x: F.reshape(x, (-1, 1, 2, 3))),
            # a layer whose weights oneDNN keeps in a blocked layout
            mx.gluon.nn.Conv2D(16, 2, activation="tanh"),
            mx.gluon.nn.BatchNorm(),
            mx.gluon.nn.Dense(4),
        )
        net.initialize(mx.init.Uniform(0.5))
        net.hybridize()
        net(mx.nd.array(rows[:BATCH]))
        params, sgd = net.collect_params(), mx.optimizer.SGD(learning_rate=0.1, momentum=0.9)
        if how == "optimizer":
            trainer = mx.gluon.Trainer(params, hvd.DistributedOptimizer(sgd), kvstore=None)
        else:
            trainer = getattr(hvd, how)(params, sgd)
        sampler = hvd.elastic.ElasticSampler(rows, drop_last=True)
        return hvd.elastic.GluonState(net=net, trainer=trainer, sampler=sampler, epoch=0, step=0)

    def batches(self, sampler):
        return mx.gluon.data.DataLoader(rows, BATCH, sampler=sampler, last_batch="discard")

    def step(self, state, batch, dies: bool) -> None:
        with mx.autograd.record():
            loss = mx.gluon.loss.L2Loss()(state.net(batch), batch[:, :4])
        loss.backward()
        if dies:
            if how == "DistributedTrainer":
                state.trainer.allreduce_grads()
            die()
        state.trainer.step(BATCH)

    def bits(self, saved: dict) -> tuple:
        return [mine for mine, _ in saved["net"]], saved["trainer"]["states"], saved["sampler"]


class Torch(Model):
    def make(self):
        torch.manual_seed(hvd.rank())
        layers = [torch.nn.Linear(6, 300), torch.nn.BatchNorm1d(300), torch.nn.Tanh()]
        model = torch.nn.Sequential(*layers, torch.nn.Linear(300, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), groups=4)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
        sampler = hvd.elastic.ElasticSampler(rows)
        return hvd.elastic.TorchState(**parts, sampler=sampler, epoch=0, step=0)

    def batches(self, sampler):
        data = torch.tensor(rows)
        return torch.utils.data.DataLoader(data, BATCH, sampler=sampler, drop_last=True)

    def step(self, state, batch, dies: bool) -> None:
        if dies and how == "in backward":
            state.model[0].weight.register_hook(die)
        (state.model(batch) - batch[:, :4]).square().mean().backward()
        if dies:
            die()
        state.optimizer.step()
        state.optimizer.zero_grad()
        if state.step % 2:
            state.scheduler.step()

    def bits(self, saved: dict) -> tuple:
        momentum = [each["momentum_buffer"] for each in saved["optimizer"]["state"].values()]
        arrays = [each.numpy() for each in (*saved["model"].values(), *momentum)]
        return arrays, saved["sampler"], saved["scheduler"]["_last_lr"]


class Keras(Model):
    """Training with fit(); `when` is the batch after which the rank dies."""

    batches_done, epochs, of_epoch = 0, 3, 4

    def make(self):
        keras.utils.set_random_seed(hvd.rank())
        layers = [keras.layers.Dense(300), keras.layers.BatchNormalization(), keras.layers.Dense(6)]
        model = keras.Sequential([keras.Input((6,)), *layers])
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9))
        model.compile(optimizer, "mse", metrics=["mae"])
        return hvd.elastic.KerasState(model, epoch=0, batch=0)

    def after_batch(self, batch, logs=None) -> None:
        self.batches_done += 1
        if first == dead and self.batches_done == when:
            die()

    def train(self, state) -> None:
        own = rows[: self.of_epoch * BATCH * ranks_at_first][hvd.rank() :: hvd.size()]
        callbacks = [
            keras.callbacks.LambdaCallback(on_train_batch_end=self.after_batch),
            hvd.elastic.UpdateEpochStateCallback(state),
            hvd.elastic.UpdateBatchStateCallback(state),
            hvd.elastic.CommitStateCallback(state, 2),
        ]
        # one epoch per fit(); some batches of the first epoch may already be done
        while state.epoch < self.epochs:
            x = own[BATCH * state.batch :]
            state.model.fit(x, x, BATCH, 1, callbacks=callbacks, shuffle=False, verbose=0)

    def bits(self, saved: dict) -> tuple:
        return ([*saved["model"], *saved["optimizer"]],)

    def at(self, saved: dict):
        return saved["epoch"], saved["batch"]


if library == "gluon":
    import mxnet as mx
elif library == "torch":
    import torch
else:
    import keras

ranks_at_first, went_on = hvd.size(), []
model = {"gluon": Gluon, "torch": Torch, "keras": Keras}[library]()
state = model.make()
hvd.elastic.run(lambda state: (went_on.append(state._saved), model.train(state)))(state)
again = model.make()
again._saved = went_on[-1]
again.restore()
model.train(again)
both = []
for each in (state, again):
    each.save()
    both.append(model.bits(each._saved))
(got, *others), (expected, *other_expected) = both
assert others == other_expected
for mine, theirs in zip(got, expected):
    np.testing.assert_array_equal(np.asarray(mine), np.asarray(theirs))
report(first, went_on=[model.at(saved) for saved in went_on], size=hvd.size())
