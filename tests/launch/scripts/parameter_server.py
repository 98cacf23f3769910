"""A script for MXNet's parameter server that uses nothing of hvdlite."""

import sys

import mxnet as mx
from mxnet import autograd, gluon

kv = mx.kv.create(sys.argv[1])
mx.random.seed(1)
x = mx.nd.random.normal(shape=(64, 4))
y = (x * mx.nd.array([1, 2, 3, 4])).sum(axis=1, keepdims=True)
if hasattr(gluon, "metric"):  # this is MXNet 2, whose Gluon needs mx.np arrays
    mx.npx.set_np()
    x, y = x.as_np_ndarray(), y.as_np_ndarray()
net = gluon.nn.Dense(1)
net.initialize()
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.05}, kvstore=kv)
loss_of = gluon.loss.L2Loss()
for step in range(40):
    with autograd.record():
        loss = loss_of(net(x), y)
    loss.backward()
    trainer.step(len(x))
    if step == 5 and kv.rank == 1 and "fail" in sys.argv:
        raise ValueError("no such thing")
print(f"worker {kv.rank} of {kv.num_workers} ends with loss {loss.mean().asnumpy().item():.4f}")
