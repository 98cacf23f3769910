"""hvdlite.numpy: the same collectives on NumPy arrays, which wait until they are done."""

import numpy as np
import pytest

import hvdlite as hvd


@pytest.mark.parametrize(
    "view",
    [lambda x: x.T, lambda x: x[::2, 1::3], lambda x: x[::-1], lambda x: x[:, 1]],
    ids=["transposed", "strided", "reversed", "column"],
)
def test_non_contiguous_input(view, rank, size):
    x = view(np.arange(60.0).reshape(6, 10) * rank)
    assert not x.flags.c_contiguous
    once = view(np.arange(60.0).reshape(6, 10))
    np.testing.assert_array_equal(
        hvd.numpy.allreduce(x, op=hvd.Sum), once * (size * (size - 1) // 2)
    )
    np.testing.assert_array_equal(hvd.numpy.broadcast(x, size - 1), once * (size - 1))
    expected = np.concatenate([once * r for r in range(size)])
    np.testing.assert_array_equal(hvd.numpy.allgather(x), expected)


def test_unaligned_and_fortran_input(rank, size):
    raw = np.zeros(41, np.uint8)
    x = raw[1:].view(np.float32)  # at an odd address
    x[:] = rank
    np.testing.assert_array_equal(hvd.numpy.allreduce(x, op=hvd.Sum), size * (size - 1) // 2)
    f = np.asfortranarray(np.arange(12.0).reshape(3, 4) + rank)
    np.testing.assert_array_equal(hvd.numpy.broadcast(f, 0), np.arange(12.0).reshape(3, 4))


def test_foreign_byte_order(rank, size):
    """Refused, or treated right: the bytes must not be summed as they are."""
    x = np.arange(5, dtype=">f4") + np.float32(rank)
    x = x.astype(">f4")
    try:
        y = hvd.numpy.allreduce(x, op=hvd.Sum)
    except ValueError as error:
        assert "dtype" in str(error)
    else:
        np.testing.assert_array_equal(y, np.arange(5) * size + size * (size - 1) // 2)


def test_lists_and_scalars(rank, size):
    assert hvd.numpy.allreduce([rank, 1], op=hvd.Sum).tolist() == [size * (size - 1) // 2, size]
    assert hvd.numpy.allreduce(2.5) == 2.5
