"""Weights that exist once on a host can be read after shutdown(), on every rank its own."""

import mxnet as mx
import numpy as np
import pytest
from mpi4py import MPI
from mxnet import autograd, gluon

import hvdlite as hvd

hvd.init()
rank = hvd.rank()
w = gluon.Parameter("w", shape=(300_000,))
w.initialize(mx.init.One())
trainer = hvd.ShardedTrainer([w], "sgd", {"learning_rate": 0.5, "momentum": 0.9})


def step() -> None:
    with autograd.record():
        loss = w.data().sum()
    loss.backward()
    trainer.step(1)
    w.data().wait_to_read()


step()
assert trainer.host_parameters == ["w"]
hvd.shutdown()
with pytest.raises(hvd.HvdliteError, match="not been initialized"):
    step()
comm = MPI.COMM_WORLD
assert (w.data().asnumpy() == np.float32(0.5)).all()
comm.Barrier()
if rank == 0:
    w.set_data(mx.nd.full((300_000,), 7))
comm.Barrier()
assert (w.data().asnumpy() == np.float32(0.5 if rank else 7)).all()
print("its own weights", flush=True)
