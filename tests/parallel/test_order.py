"""Which calls pair across ranks: by name, in whatever order each rank submits them."""

import mxnet as mx
import numpy as np
from mpi4py import MPI

import hvdlite as hvd


def expected_sum(size: int, i: int) -> float:
    return sum(r + i for r in range(size))


def test_one_more_unnamed_call_shifts_no_other(rank, size, asynchronous):
    """Horovod counts unnamed calls, so one more on some rank shifts all later ones."""

    def extra():
        return hvd.allreduce(mx.nd.ones((3,)))

    pending = extra() if rank == 0 else None
    for step in range(3):
        y = hvd.allreduce(mx.nd.full((7,), step + rank), op=hvd.Sum)
        np.testing.assert_array_equal(y.asnumpy(), expected_sum(size, step))
    if pending is None:
        pending = extra()  # the others come to it later
    np.testing.assert_array_equal(pending.asnumpy(), 1)


def test_front_layers_are_updated_while_a_later_gradient_is_under_way(rank, asynchronous):
    """Else the next forward could not begin before the last gradient has come."""
    params = [mx.gluon.Parameter(f"front{i}", shape=(3,)) for i in range(4)]  # one update of SGD's
    params.append(mx.gluon.Parameter("late", shape=(2**18,)))  # a group of its own
    for param in params:
        param.initialize(mx.init.One())

    def backward():
        with mx.autograd.record():
            losses = [param.data().sum() for param in params]
        mx.autograd.backward(losses)

    trainer = hvd.DistributedTrainer(params, "sgd", {"learning_rate": 1.0})
    backward()
    trainer.step(1)  # pairs the parameters
    backward()
    if rank == 0:
        trainer.step(1)
        for param in params[:4]:
            np.testing.assert_array_equal(param.data().asnumpy(), -1)
    else:
        trainer._gradients.average({i: params[i].list_grad() for i in range(4)})
    MPI.COMM_WORLD.Barrier()  # only now the others submit the late gradient
    if rank:
        trainer._gradients.average({4: params[4].list_grad()})
    np.testing.assert_array_equal(params[4].grad().asnumpy(), 1)
