"""Collectives under autograd.record(): their gradients are scaled as Horovod's are."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

import hvdlite as hvd


@pytest.fixture(autouse=True)
def numpy_shapes():
    """Switch on NumPy shapes, which mx.np arrays need and mx.nd arrays allow."""
    with mx.util.np_shape(True):
        yield


def leaf(module, values, grad_req="write"):
    x = module.array(np.asarray(values, "float32"))
    x.attach_grad(grad_req)
    return x


@pytest.mark.parametrize("grad_req", ["write", "add"])
def test_a_collective_inside_a_graph_has_the_right_gradient(grad_req, rank, size):
    """Other operators use the collective's input twice, and its result."""
    x = leaf(mx.nd, np.arange(6.0).reshape(2, 3) + rank, grad_req)
    scale = leaf(mx.nd, np.full((2, 3), 2.0), grad_req)
    rounds = 2 if grad_req == "add" else 1
    for i in range(rounds):
        with autograd.record():
            h = x * scale
            y = hvd.allreduce(h, op=hvd.Sum, name=f"middle{i}") * h + h
            loss = y.sum() * (rank + 1)
        loss.backward()
    everyone = [2 * (np.arange(6.0).reshape(2, 3) + r) for r in range(size)]
    total = sum(everyone)
    # derivative, by this rank's h, of the sum over q of (q + 1) * (total * h_q + h_q)
    dh = (rank + 1) * (total + 1) + sum((q + 1) * h for q, h in enumerate(everyone))
    np.testing.assert_allclose(x.grad.asnumpy(), rounds * 2 * dh, rtol=1e-5)
    np.testing.assert_allclose(
        scale.grad.asnumpy(), rounds * dh * everyone[rank] / 2, rtol=1e-5, atol=1e-4
    )


def test_many_concurrent_recorded_collectives_do_not_deadlock(rank, size):
    """MXNet has fewer threads than collectives; ranks start the collectives in opposite orders."""
    leaves = [leaf(mx.nd, np.full((5,), float(i))) for i in range(60)]
    order = range(60) if rank % 2 else reversed(range(60))
    with autograd.record():
        gathered = {i: hvd.allreduce(leaves[i], op=hvd.Sum, name=f"leaf{i}") for i in order}
        loss = sum((gathered[i] * (i + rank)).sum() for i in range(60))
    loss.backward()
    for i in range(60):
        expected = size * i + size * (size - 1) / 2
        np.testing.assert_allclose(leaves[i].grad.asnumpy(), expected)


def test_backward_may_run_twice_through_one_collective(rank, size):
    x = leaf(mx.nd, [1.0, 2.0])
    with autograd.record():
        y = hvd.allreduce(x * x, op=hvd.Sum)
    for _ in range(3):
        y.backward(retain_graph=True)
    np.testing.assert_allclose(x.grad.asnumpy(), [2 * size, 4 * size])


def test_a_collective_under_autograd_pause_has_no_gradient(rank, size):
    x = leaf(mx.nd, [1.0])
    with autograd.record():
        with autograd.pause():
            y = hvd.allreduce(x, op=hvd.Sum)
        z = (x * y).sum()
    z.backward()
    np.testing.assert_allclose(x.grad.asnumpy(), [size])


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool", "float16", "float64"])
def test_autograd_records_collectives_of_dtypes_that_have_no_gradient(dtype, rank, size):
    """Scripts may reduce counts and metrics, which need no gradient, while recording."""
    x = mx.np.ones((3,), dtype=dtype)
    with autograd.record():
        y = hvd.allreduce(x, op=hvd.Sum)
        z = hvd.broadcast(x, 0)
        w = hvd.allgather(x)
    assert y.dtype == z.dtype == w.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(y.asnumpy(), True if dtype == "bool" else size)
    assert w.shape == (3 * size,)


def test_backward_through_an_empty_part_is_an_error(rank, size):
    """allgather takes empty parts; only their gradient fails, with an error instead of a hang."""
    x = leaf(mx.np, np.ones((0 if rank == 0 else 2, 3)))
    with autograd.record():
        y = hvd.allgather(x)
        loss = (y * 2).sum()
    assert y.shape == (2 * (size - 1), 3)
    if rank > 0:
        with pytest.raises(mx.MXNetError):
            loss.backward()
            x.grad.asnumpy()


def test_ranks_that_disagree_in_backward_get_an_error(rank, several, asynchronous):
    x = leaf(mx.nd, np.ones((2, 2)))
    with autograd.record():
        y = hvd.allreduce(x, name="forward agrees", op=hvd.Sum)
    if rank == 0:  # as if the script had taken another branch on this rank
        other = hvd.allreduce(mx.nd.ones((3,)), name="forward agrees.grad")
        with pytest.raises(mx.MXNetError, match="ranks disagree on the shape"):
            other.wait_to_read()
    else:
        y.backward()
        with pytest.raises(mx.MXNetError, match="ranks disagree on the shape"):
            x.grad.wait_to_read()


@pytest.mark.parametrize("module", [mx.nd, mx.np], ids=["nd", "np"])
@pytest.mark.parametrize("verb", [hvd.allreduce_, hvd.broadcast_, hvd.grouped_allreduce_])
def test_an_in_place_collective_on_a_recorded_array_is_an_error(module, verb, rank, size):
    """Backward needs the old values. MXNet refuses x += 1 for the same reason."""
    more = {"root_rank": 0} if verb is hvd.broadcast_ else {"op": hvd.Sum}
    given = (lambda x: [x]) if verb is hvd.grouped_allreduce_ else (lambda x: x)
    x, other = leaf(module, [2.0, 3.0]), module.array([rank + 1.0])
    with autograd.record():
        y = x * 1
        z = (y * y).sum()
        with pytest.raises(ValueError, match="has been recorded by autograd.record"):
            verb(given(y), name="recorded", **more)
        verb(given(other), name="other", **more)  # autograd has not recorded `other`
    z.backward()
    assert x.grad.asnumpy().tolist() == [4, 6]
    assert other.asnumpy()[0] == (1 if verb is hvd.broadcast_ else sum(range(1, size + 1)))


def test_a_trainer_may_reduce_gradients_inside_record(rank, size):
    """The trainer makes views of the gradients, and autograd records the making of views."""
    net = mx.gluon.nn.Dense(2, in_units=3)
    net.initialize(mx.init.One())
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 1})
    with autograd.record():
        net(mx.nd.ones((4, 3)) * rank).sum().backward()
        trainer.allreduce_grads()
    trainer.update(1)
    np.testing.assert_allclose(net.weight.data().asnumpy(), 1 - 4 * (size - 1) / 2)
