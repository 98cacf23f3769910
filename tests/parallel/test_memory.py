"""Collectives of NDArrays that are views, in a blocked layout, freed, or not yet allocated."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

import hvdlite as hvd


def total(size: int) -> int:
    return size * (size - 1) // 2


def test_reducing_a_slice_in_place_leaves_the_rest_of_the_array(rank, size):
    x = mx.nd.ones((8, 3)) * rank
    hvd.allreduce_(x[2:5], op=hvd.Sum)
    expected = np.full((8, 3), rank)
    expected[2:5] = total(size)
    np.testing.assert_array_equal(x.asnumpy(), expected)


def test_a_slice_and_a_reshaped_array_are_reduced(rank, size):
    x = mx.nd.arange(24).reshape((4, 6)) * rank
    y = hvd.allreduce(x[1:3], op=hvd.Sum)
    np.testing.assert_array_equal(y.asnumpy(), np.arange(6, 18).reshape(2, 6) * total(size))
    z = hvd.broadcast(x.reshape((2, 12)), size - 1)
    np.testing.assert_array_equal(z.asnumpy(), np.arange(24).reshape(2, 12) * (size - 1))
    w = hvd.allgather(x[3])
    np.testing.assert_array_equal(w.asnumpy().reshape(size, 6)[-1], np.arange(18, 24) * (size - 1))


def test_pending_allreduces_of_slices_of_one_array_give_right_results(rank, size):
    """MXNet runs the allreduces one after another, because slices share the array's variable."""
    x = mx.nd.ones((40, 5)) * rank
    for i in range(20):
        hvd.allreduce_(x[2 * i : 2 * i + 1], op=hvd.Sum, name=f"row{i}")
    expected = np.full((40, 5), rank)
    expected[::2] = total(size)
    np.testing.assert_array_equal(x.asnumpy(), expected)


def test_concurrent_collectives_of_one_array_give_right_results(rank, size):
    x = mx.nd.ones((5,)) * rank
    results = [hvd.allreduce(x, op=hvd.Sum), hvd.broadcast(x, size - 1), hvd.allgather(x)]
    x += 100  # the collectives must not see this later write
    sums = [y.asnumpy().sum() for y in results]
    assert sums == [5 * total(size), 5 * (size - 1), 5 * total(size)]


def test_scripts_need_not_wait_between_operators_and_collectives(rank, size):
    x = mx.nd.ones((1000,)) * rank
    y = hvd.allreduce(x + 1, op=hvd.Sum) * 2
    hvd.allreduce_(y, op=hvd.Average)
    np.testing.assert_array_equal((y - 1).asnumpy(), 2 * (total(size) + size) - 1)


def test_arrays_that_python_frees_before_the_operation_are_reduced(rank, size):
    for i in range(300):
        x = mx.nd.ones((500,)) * rank
        hvd.allreduce_(x, name=f"freed{i}")
        del x
        hvd.broadcast(mx.nd.ones((500,)), 0, name=f"freed too {i}")
        hvd.allgather(mx.nd.ones((5,)), name=f"freed as well {i}")
    kept = mx.nd.ones((500,)) * rank
    np.testing.assert_array_equal(hvd.allreduce(kept, op=hvd.Sum).asnumpy(), total(size))


def test_a_collective_writes_arrays_whose_memory_is_not_yet_allocated(rank, size):
    """MXNet allocates the memory of mx.nd.empty at its first use: here, in the collective."""
    x = mx.nd.empty((1000, 7)) if rank else mx.nd.full((1000, 7), 3)
    np.testing.assert_array_equal(hvd.broadcast_(x, 0).asnumpy(), 3)
    assert hvd.allreduce_(mx.nd.empty((17,))).asnumpy().shape == (17,)
    assert hvd.allgather(mx.nd.empty((17,))).asnumpy().shape == (17 * size,)


@pytest.mark.parametrize("context", [mx.cpu(0), mx.cpu(1), mx.Context("cpu_shared", 0)], ids=str)
def test_results_stay_on_the_cpu_context_of_their_input(context, rank, size):
    x = mx.nd.full((9,), rank, ctx=context)
    y = hvd.allreduce(x, op=hvd.Sum)
    assert y.context == context
    np.testing.assert_array_equal(y.asnumpy(), total(size))
    assert hvd.allgather(x).context == context


def conv_net():
    net = gluon.nn.HybridSequential()
    net.add(
        gluon.nn.Conv2D(16, 3, in_channels=16, padding=1),
        gluon.nn.Conv2D(32, 3, in_channels=16, groups=1),
        gluon.nn.Dense(64),
        gluon.nn.Dense(10),
    )
    return net


@pytest.mark.parametrize("hybridize", [False, True], ids=["imperative", "hybridized"])
def test_weights_in_onednns_blocked_layout_are_reduced(hybridize, rank, size):
    """A forward pass without autograd leaves the weights of Conv and Dense in this layout."""
    net = conv_net()
    mx.random.seed(10 + rank)
    net.initialize(mx.init.Xavier(), force_reinit=True)
    if hybridize:
        net.hybridize(static_alloc=True, static_shape=True)
    images = mx.nd.ones((8, 16, 12, 12))
    weights = {}
    for _ in range(2):  # twice, because the second forward makes the layout blocked again
        before = net(images).asnumpy()
        weights = net._collect_params_with_prefix()
        own = {name: p.data().copy().asnumpy() for name, p in weights.items()}
        everyone = hvd.allgather_object(own)
        net(images)  # does not wait, so the layout changes during the broadcast
        hvd.broadcast_parameters(weights, root_rank=size - 1)
        for name, p in weights.items():
            np.testing.assert_array_equal(p.data().asnumpy(), everyone[size - 1][name], name)
        if rank == size - 1:
            np.testing.assert_allclose(net(images).asnumpy(), before, rtol=1e-4, atol=1e-5)
    net(images)
    for name, p in weights.items():
        summed = hvd.allreduce(p.data(), op=hvd.Sum, name=name).asnumpy()
        np.testing.assert_allclose(summed, size * everyone[size - 1][name], rtol=1e-6)


def test_activations_in_onednns_blocked_layout_are_gathered(rank, size):
    """A convolution may return an array in a blocked layout; allgather reads it in place."""
    conv = gluon.nn.Conv2D(32, 3, in_channels=16)
    conv.initialize(mx.init.One())
    x = conv(mx.nd.ones((4, 16, 6, 6)) * rank)
    gathered = hvd.allgather(x).asnumpy()
    assert [part[0, 0, 0, 0] for part in np.split(gathered, size)] == [144 * r for r in range(size)]
    np.testing.assert_array_equal(hvd.allreduce(x, op=hvd.Sum).asnumpy(), 144 * total(size))
    np.testing.assert_array_equal(hvd.allreduce_(x, op=hvd.Sum).asnumpy(), 144 * total(size))
