"""Bad input that concerns one tensor: the same clear error on every rank, and the job goes on."""

import mxnet as mx
import numpy as np
import pytest

import hvdlite as hvd

pytestmark = pytest.mark.usefixtures("several")


def error_of(call) -> str:
    with pytest.raises((mx.MXNetError, hvd.HvdliteError)) as caught:
        call().wait_to_read()
    return str(caught.value)


@pytest.mark.usefixtures("asynchronous")
def test_the_others_in_flight_are_not_harmed(rank, size):
    """One bad tensor among many that could be fused with it."""
    good = [mx.nd.full((9,), rank) for _ in range(20)]
    for i, x in enumerate(good):
        hvd.allreduce_(x, op=hvd.Sum, name=f"good{i}")
        if i == 10:
            bad = hvd.allreduce(mx.nd.ones((9 + rank,)), op=hvd.Sum, name="bad")
    for x in good:
        np.testing.assert_array_equal(x.asnumpy(), size * (size - 1) / 2)
    assert "tensor 'allreduce.bad'" in error_of(lambda: bad)


def test_what_depends_on_a_failed_tensor_fails(rank):
    x = mx.nd.ones((3 + (rank == 0),))
    text = error_of(lambda: hvd.allreduce(x, name="bad") * 2 + 1)
    assert "tensor 'allreduce.bad'" in text


def test_gradients_of_a_failed_operator(rank, size):
    """Not hvdlite's fault: an operator fails on every rank; what used its result fails alike."""
    with pytest.raises(mx.MXNetError, match="has to be positive"):  # when it runs
        hvd.allreduce_(mx.nd.random.normal(0, -1, (2,)), name="poisoned").wait_to_read()
    y = hvd.allreduce(mx.nd.ones((2,)), op=hvd.Sum)
    assert (y.asnumpy() == size).all()
