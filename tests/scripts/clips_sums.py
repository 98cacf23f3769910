"""An unchanged script for Horovod that scales the loss and clips sums, as scripts for BERT do.

Between allreduce_grads() and update(), it clips gradients to a norm of MAX_NORM * size().
"""

import horovod
import mxnet as mx
import numpy as np
from horovod.mxnet.functions import broadcast_object
from horovod.mxnet.mpi_ops import rank, size

try:
    import horovod.mxnet as hvd
except ImportError:  # libraries that use Horovod only if it is installed catch this error, too
    hvd = None

from jobs import report

ROWS, STEPS, MAX_NORM = 12, 4, 1.0


class ClippingTrainer:
    """Scale the loss; clip gradients by giving update() a larger batch size."""

    def __init__(self, trainer, loss_scale=128.0):
        self.trainer = trainer
        self.loss_scale = loss_scale

    def step(self, batch_size, max_norm):
        self.trainer.allreduce_grads()
        gradients = [p.list_grad()[0] for p in self.trainer._params if p.grad_req != "null"]
        norm = mx.nd.add_n(*[(g**2).sum() for g in gradients]).sqrt().asscalar()
        ratio = max(1.0, norm / (max_norm * self.loss_scale))
        self.trainer.update(ratio * batch_size * self.loss_scale)
        return float(norm / self.loss_scale)


hvd.init()
net = mx.gluon.nn.Dense(3, in_units=5)
net.initialize(mx.init.Uniform())
random = np.random.RandomState(3)
for param in net.collect_params().values():
    # different on each rank, so the broadcast is needed
    param.set_data(mx.nd.array(random.uniform(-1, 1, param.shape) + rank()))
hvd.broadcast_parameters(net.collect_params(), root_rank=0)
data = random.uniform(-3, 3, (STEPS, ROWS, 5))[:, rank() :: size()]
trainer = ClippingTrainer(
    hvd.DistributedTrainer(net.collect_params(), mx.optimizer.SGD(learning_rate=0.1))
)
norms = []
for batch in data:
    with mx.autograd.record():
        loss = (net(mx.nd.array(batch)) ** 2).mean() * trainer.loss_scale
    loss.backward()
    norms.append(trainer.step(1, max_norm=MAX_NORM * size()))
double = broadcast_object((lambda x: 2 * x) if rank() == 0 else None)
report(
    rank(),
    norms=norms,
    weights=[p.data().asnumpy().ravel().tolist() for p in net.collect_params().values()],
    doubled=double(21),
    modules=[horovod.__name__, hvd.__name__, hvd.mpi_ops.__name__],
)
