"""Grouped collectives: several tensors in one call."""

import os

import mxnet as mx
import numpy as np
import pytest

import hvdlite as hvd


def test_a_group_with_the_same_array_twice_does_not_deadlock(rank, size):
    """In MXNet's engine an operation that writes to one array twice never starts."""
    x, y = mx.nd.full((3,), rank), mx.nd.full((3,), rank)
    hvd.grouped_allreduce_([x, y, x], op=hvd.Sum)
    np.testing.assert_array_equal(y.asnumpy(), sum(range(size)))
    # x was reduced twice in place, so its sum was multiplied by size
    np.testing.assert_array_equal(x.asnumpy(), sum(range(size)) * size)
    z = mx.nd.full((4, 2), rank)
    for result in hvd.grouped_allreduce([z, z], op=hvd.Sum):
        np.testing.assert_array_equal(result.asnumpy(), sum(range(size)))
    for result in hvd.grouped_reducescatter([z, z[0:2], z], op=hvd.Sum):
        np.testing.assert_array_equal(result.asnumpy(), sum(range(size)))
    for result in hvd.grouped_allgather([z, z]):
        assert result.shape == (4 * size, 2)


@pytest.mark.usefixtures("several", "asynchronous")
@pytest.mark.parametrize("waited", [0, 3])
@pytest.mark.parametrize("bad", [{0}, {1}, {2, 3}, {0, 3}])
def test_each_result_of_a_group_raises_the_errors_of_all_members(bad, waited, rank, size):
    """Even the result of a good tensor raises the error, which names only the bad tensors."""
    shapes = [(4 + (rank == 0 and i in bad), 2) for i in range(4)]
    results = hvd.grouped_allreduce([mx.nd.ones(shape) for shape in shapes], op=hvd.Sum)
    with pytest.raises(mx.MXNetError) as caught:
        results[waited].wait_to_read()
    for i in range(4):
        said = f"[{i}]': ranks disagree on the shape" in str(caught.value)
        assert said == (i in bad)
    assert (hvd.allreduce(mx.nd.ones(3), op=hvd.Sum).asnumpy() == size).all()


def test_a_group_is_sent_when_mxnet_has_computed_all_its_tensors(rank, size, several, asynchronous):
    # With HVDLITE_BYTES_AHEAD=1, which some jobs of the tests set, each tensor is a batch.
    batches = 2 if "HVDLITE_BYTES_AHEAD" in os.environ else 1
    late, early = mx.nd.ones((100, 100)), mx.nd.ones(3)  # too small to be cut into pieces
    early.wait_to_read()
    hvd.barrier()
    before = hvd.stats()["batches"]
    for _ in range(1000):
        late = mx.nd.dot(late, late) / 100
    hvd.grouped_allreduce_([early, late], op=hvd.Sum)
    assert hvd.stats()["batches"] == before  # no batch has begun: the group waits for `late`
    assert (early.asnumpy() == size).all()
    np.testing.assert_allclose(late.asnumpy(), size, rtol=1e-4)
    assert hvd.stats()["batches"] == before + batches


def test_a_grouped_call_with_a_wrong_tensor_sends_nothing(rank, size):
    good, bad = mx.nd.ones((2,)), mx.nd.ones((2,), dtype="bool")
    for call in (hvd.grouped_allreduce, hvd.grouped_allreduce_, hvd.grouped_reducescatter):
        with pytest.raises(ValueError, match=r"\[1\]' is bool, which can't be averaged"):
            call([good, bad, good], name="w")
    with pytest.raises(ValueError, match=r"\[1\]' has storage type row_sparse"):
        hvd.grouped_allgather([good, mx.nd.ones((2, 2)).tostype("row_sparse")], name="w")
    with pytest.raises(ValueError, match=r"\[1\]' is bool, which can't be averaged"):
        hvd.numpy.grouped_allreduce([np.ones(2), np.ones(2, bool)], name="w")
    assert (good.asnumpy() == 1).all()
    y = hvd.grouped_allreduce([good], op=hvd.Sum, name="w")[0]  # the name may be used again
    assert (y.asnumpy() == size).all()


def test_grouped_calls_of_different_lengths_fail_on_all_ranks(rank, size, several):
    """Every rank gets the error, and no rank is left waiting for a tensor of the longer list."""
    arrays = [np.ones(2)] * (3 if rank == 0 else 2)
    text = r"'%s.w.*': ranks disagree on the number of tensors: rank 0: 3; rank.*: 2"
    for kind in ("allreduce", "allgather", "reducescatter"):
        with pytest.raises(hvd.HvdliteError, match=text % kind) as caught:
            getattr(hvd.numpy, f"grouped_{kind}")(arrays, name="w")
        assert f"'{kind}.w[0]'" in str(caught.value)
    with pytest.raises(mx.MXNetError, match=text % "allreduce"):
        for result in hvd.grouped_allreduce([mx.nd.array(x) for x in arrays], name="w"):
            result.wait_to_read()
    text = r"'%s.w.rows': ranks disagree on the shape: rank 0: \(1, 3, 2\); .*: \(1, 2, 2\)"
    for kind in ("allgather", "reducescatter"):  # MXNet's arrays: row counts are exchanged first
        with pytest.raises(mx.MXNetError, match=text % kind):
            getattr(hvd, f"grouped_{kind}")([mx.nd.array(x) for x in arrays], name="w")
    assert hvd.numpy.allreduce(np.ones(1), op=hvd.Sum)[0] == size
