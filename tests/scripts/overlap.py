"""Training steps of a deep network, with time stamps on the clock of the core's log lines.

An identity operator after the first layer notes when backward comes to it: the first layer's own
backward is still to be done then. A copy of the first layer's gradient, pushed before its
allreduce, tells when that gradient was ready: that is the end of backward.
"""

import time

import hvdlite.mxnet as hvd

# isort: split
import gluon2  # noqa: F401
import mxnet as mx
from jobs import report
from mpi4py import MPI
from mxnet import autograd, gluon
from mxnet.gluon import nn

LAYERS, UNITS, ROWS = 12, 512, 256
times = {}


class Noting(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0])

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        out_grad[0].wait_to_read()
        times["backward_reaches_first_layer"] = time.monotonic()
        self.assign(in_grad[0], req[0], out_grad[0])


@mx.operator.register("noting")
class NotingProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return Noting()


def step(net, trainer, x) -> None:
    with autograd.record():
        y = mx.nd.Custom(net[0](x).as_nd_ndarray(), op_type="noting")
        for layer in net[1:]:
            y = layer(y)
        loss = y.sum()
    loss.wait_to_read()
    MPI.COMM_WORLD.Barrier()  # else a rank that is early has to wait for the others' gradients
    times["backward_begins"] = time.monotonic()
    loss.backward()
    times["backward_is_pushed"] = time.monotonic()
    first_gradient = net[0].weight.grad().copy()
    trainer.allreduce_grads()
    times["allreduces_are_pushed"] = time.monotonic()
    first_gradient.wait_to_read()
    times["backward_ends"] = time.monotonic()
    mx.nd.waitall()
    times["last_allreduce_ends"] = time.monotonic()
    trainer.update(ROWS)


hvd.init()
net = nn.Sequential()
for _ in range(LAYERS):
    net.add(nn.Dense(UNITS, in_units=UNITS, activation="tanh"))
net.initialize(mx.init.Xavier())
trainer = hvd.DistributedTrainer(net.collect_params(), gluon.trainer.opt.SGD(), prefix="net")
batch = mx.nd.random.normal(shape=(ROWS, UNITS))
for i in range(10):  # the first one compares the networks and fills the caches
    step(net, trainer, batch)
    report(hvd.rank(), **{str(i): dict(times)})
