"""Which calls pair across ranks: by name, in whatever order each rank submits them."""

import mxnet as mx
import numpy as np
from mpi4py import MPI

import hvdlite as hvd


def expected_sum(size: int, i: int) -> float:
    return sum(r + i for r in range(size))


def test_an_extra_unnamed_call_on_one_rank_renames_no_other(rank, size, asynchronous):
    """Horovod counts unnamed calls, so one more on some rank shifts all later ones."""

    def extra():
        return hvd.allreduce(mx.nd.ones((3,)))

    pending = extra() if rank == 0 else None
    for step in range(3):
        y = hvd.allreduce(mx.nd.full((7,), step + rank), op=hvd.Sum)
        np.testing.assert_array_equal(y.asnumpy(), expected_sum(size, step))
    if pending is None:
        pending = extra()  # the other ranks submit it later
    np.testing.assert_array_equal(pending.asnumpy(), 1)


ONE_GROUP = 2**18  # float32 elements: 1 MiB


def parameters(number: int) -> list:
    """Some small ones, which are one update of SGD's, and one that is a group of its own."""
    shapes = [(3,)] * number + [(ONE_GROUP,)]
    params = [mx.gluon.Parameter(f"p{i}", shape=shape) for i, shape in enumerate(shapes)]
    for param in params:
        param.initialize(mx.init.One())
    return params


def backward(params, of_first=None) -> None:
    """From the last to the first; MXNet runs operators of one call in bulks."""
    for param in params[::-1]:
        with mx.autograd.record():
            loss = param.data() * 1
        loss.backward(of_first if param is params[0] else None)


def test_a_gradient_is_averaged_while_backward_goes_on(rank, several, asynchronous):
    """On other ranks the first layer's comes only when rank 0 has the average of the last one's."""
    first, last = params = parameters(1)
    trainer = hvd.DistributedTrainer(params, "sgd")
    backward(params)
    trainer.step(1)  # pairs the parameters
    backward(params, hvd.broadcast(mx.nd.zeros(3), 0, name="gate") if rank else None)
    trainer.allreduce_grads()
    if rank == 0:
        last.grad().wait_to_read()
        hvd.broadcast(mx.nd.ones(3), 0, name="gate")
    for param in (first, last):
        np.testing.assert_array_equal(param.grad().asnumpy(), 1)


def test_front_layers_are_updated_while_a_later_gradient_is_under_way(rank, asynchronous):
    """Else the next forward could not begin before the last gradient has come."""
    params = parameters(4)
    trainer = hvd.DistributedTrainer(params, "sgd", {"learning_rate": 1.0})
    backward(params)
    trainer.step(1)  # pairs the parameters
    backward(params)
    if rank == 0:
        trainer.step(1)
        for param in params[:4]:
            np.testing.assert_array_equal(param.data().asnumpy(), -1)
    else:
        trainer._gradients.average({i: params[i].list_grad() for i in range(4)})
    MPI.COMM_WORLD.Barrier()  # the other ranks submit the late gradient only now
    if rank:
        trainer._gradients.average({4: params[4].list_grad()})
    np.testing.assert_array_equal(params[4].grad().asnumpy(), 1)
