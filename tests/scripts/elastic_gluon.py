"""Elastic training of a Gluon net. argv: the rank that is killed, in which of 12 steps, trainer.

At the end those that are left train once more, alone, from the commit they went on from: the same
bits. The killed rank has submitted some of the step's gradients.
"""

import os
import signal
import sys

import mxnet as mx
import numpy as np
from jobs import report
from mxnet import autograd, gluon

import hvdlite as hvd

dead, when, kind = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
STEPS, BATCH = 12, 4
hvd.init()
first = hvd.rank()
images = np.random.RandomState(0).uniform(size=(STEPS * BATCH * hvd.size(), 6)).astype("f4")


def make():
    mx.random.seed(hvd.rank())  # sync() makes them equal
    net = gluon.nn.HybridSequential()
    net.add(
        gluon.nn.HybridLambda(lambda F, x: F.reshape(x, (-1, 1, 2, 3))),
        gluon.nn.Conv2D(16, 2, activation="tanh"),  # its weights lie as oneDNN wants them
        gluon.nn.BatchNorm(),
        gluon.nn.Dense(4),
    )
    net.initialize(mx.init.Uniform(0.5))
    net.hybridize()
    net(mx.nd.array(images[:BATCH]))
    params, options = net.collect_params(), {"learning_rate": 0.1, "momentum": 0.9}
    if kind == "optimizer":
        optimizer = hvd.DistributedOptimizer(mx.optimizer.SGD(**options))
        trainer = gluon.Trainer(params, optimizer, kvstore=None)
    else:
        trainer = getattr(hvd, kind)(params, "sgd", options)
    sampler = hvd.elastic.ElasticSampler(images, drop_last=True)
    return hvd.elastic.GluonState(net=net, trainer=trainer, sampler=sampler, epoch=0, step=0)


def train(state, until):
    loss_of = gluon.loss.L2Loss()
    while state.step < until:
        batches = gluon.data.DataLoader(images, BATCH, sampler=state.sampler, last_batch="discard")
        for i, batch in enumerate(batches):
            with autograd.record():
                loss = loss_of(state.net(batch), batch[:, :4])
            loss.backward()
            if first == dead and state.step == when:
                if kind == "DistributedTrainer":
                    state.trainer.allreduce_grads()
                os.kill(os.getpid(), signal.SIGKILL)
            state.trainer.step(BATCH)
            state.sampler.record_batch(i, BATCH)
            state.step += 1
            if state.step % 2 == 0:
                state.commit()
            if state.step >= until:
                break
        else:
            state.epoch += 1
            state.sampler.set_epoch(state.epoch)


def bits(state):
    state.save()
    return state._saved


went_on = []
state = make()
elastic = hvd.elastic.run(lambda state: (went_on.append(state._saved), train(state, STEPS)))
elastic(state)
again = make()
again._saved = went_on[-1]
again.restore()
train(again, STEPS)
got, expected = bits(state), bits(again)
for (mine, _), (theirs, _) in zip(got["net"], expected["net"]):
    np.testing.assert_array_equal(mine, theirs)
assert got["trainer"]["states"] == expected["trainer"]["states"]
assert got["sampler"] == expected["sampler"]
loss = float(np.square(state.net(mx.nd.array(images)).asnumpy() - images[:, :4]).mean())
report(first, went_on=[saved["step"] for saved in went_on], size=hvd.size(), loss=loss)
