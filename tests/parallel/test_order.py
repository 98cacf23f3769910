"""Collectives pair across ranks by name, in whatever order each rank submits them."""

import mxnet as mx
import numpy as np
from mpi4py import MPI

import hvdlite as hvd


def expected_sum(size: int, i: int) -> float:
    return sum(r + i for r in range(size))


def test_an_extra_unnamed_call_on_one_rank_does_not_rename_later_calls(rank, size, asynchronous):
    """Horovod names unnamed calls by a count, so an extra call renames all later calls."""

    def extra():
        return hvd.allreduce(mx.nd.ones((3,)))

    pending = extra() if rank == 0 else None
    for step in range(3):
        y = hvd.allreduce(mx.nd.full((7,), step + rank), op=hvd.Sum)
        np.testing.assert_array_equal(y.asnumpy(), expected_sum(size, step))
    if pending is None:
        pending = extra()  # the other ranks submit this tensor later
    np.testing.assert_array_equal(pending.asnumpy(), 1)


ONE_GROUP = 2**18  # float32 elements: 1 MiB


def parameters(number: int) -> list:
    """Return `number` small parameters, which SGD updates together, and a large one."""
    shapes = [(3,)] * number + [(ONE_GROUP,)]
    params = [mx.gluon.Parameter(f"p{i}", shape=shape) for i, shape in enumerate(shapes)]
    for param in params:
        param.initialize(mx.init.One())
    return params


def backward(params, of_first=None) -> None:
    """Call backward for each parameter, from the last to the first.

    One call for all parameters would be wrong, because MXNet may run a call's operators in bulk.
    """
    for param in params[::-1]:
        with mx.autograd.record():
            loss = param.data() * 1
        loss.backward(of_first if param is params[0] else None)


def test_a_gradient_is_averaged_while_backward_goes_on(rank, several, asynchronous):
    """On other ranks, backward of `first` waits until rank 0 has the average of `last`."""
    first, last = params = parameters(1)
    trainer = hvd.DistributedTrainer(params, "sgd")
    backward(params)
    trainer.step(1)  # the first step compares the parameters of all ranks
    backward(params, hvd.broadcast(mx.nd.zeros(3), 0, name="gate") if rank else None)
    trainer.allreduce_grads()
    if rank == 0:
        last.grad().wait_to_read()
        hvd.broadcast(mx.nd.ones(3), 0, name="gate")
    for param in (first, last):
        np.testing.assert_array_equal(param.grad().asnumpy(), 1)


def test_front_layers_are_updated_while_a_later_gradient_is_in_progress(rank, asynchronous):
    """Otherwise the next forward pass could not begin before the last gradient arrives."""
    params = parameters(4)
    trainer = hvd.DistributedTrainer(params, "sgd", {"learning_rate": 1.0})
    backward(params)
    trainer.step(1)  # the first step compares all ranks' parameters
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
