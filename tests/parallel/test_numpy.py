"""hvdlite.numpy: the same collectives on NumPy arrays, which wait until they are done."""

import numpy as np
import pytest
from arrays import FLOATS, INTEGERS, SHAPES, all_ranks, toward_zero, whole_numbers

import hvdlite as hvd

NUMPY_DTYPES = tuple(d for d in FLOATS + INTEGERS if d != "bfloat16")


@pytest.mark.parametrize("dtype", (*NUMPY_DTYPES, "bool"))
def test_sum_broadcast_and_allgather(dtype, rank, size):
    for shape in ((), *SHAPES):
        x = whole_numbers(dtype, shape, rank)
        everyone = all_ranks(dtype, shape)
        total = hvd.numpy.allreduce(x, op=hvd.Sum)
        assert total.dtype == x.dtype
        np.testing.assert_array_equal(
            total, everyone.sum(0, dtype=bool if dtype == "bool" else None)
        )
        np.testing.assert_array_equal(hvd.numpy.broadcast(x, size - 1), everyone[-1])
        joined = everyone if shape == () else np.concatenate(list(everyone))
        np.testing.assert_array_equal(hvd.numpy.allgather(x), joined)
        np.testing.assert_array_equal(x, whole_numbers(dtype, shape, rank))


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_average(dtype, rank, size):
    y = hvd.numpy.allreduce(whole_numbers(dtype, (100,), rank))
    total = all_ranks(dtype, (100,)).sum(0)
    if dtype in INTEGERS:
        np.testing.assert_array_equal(y, toward_zero(total, size))
    else:
        np.testing.assert_allclose(y, total / size, rtol=1e-3 if dtype == "float16" else 1e-6)


def test_integers_wrap_as_numpys_do(rank, size):
    x = np.array([100, -100], np.int8)
    expected = np.sum([x] * size, axis=0, dtype=np.int8)
    np.testing.assert_array_equal(hvd.numpy.allreduce(x, op=hvd.Sum), expected)
    big = np.array([2**62, -(2**62)])
    with np.errstate(over="ignore"):
        expected = np.sum([big] * size, axis=0)
    np.testing.assert_array_equal(hvd.numpy.allreduce(big, op=hvd.Sum), expected)


def test_read_only_input(rank, size):
    x = np.full(10, rank)
    x.flags.writeable = False
    assert hvd.numpy.allreduce(x, op=hvd.Sum)[0] == size * (size - 1) // 2
    assert hvd.numpy.broadcast(x, size - 1)[0] == size - 1
    assert len(hvd.numpy.allgather(np.frombuffer(b"abc", np.uint8))) == 3 * size


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


@pytest.mark.parametrize("rows", [0, 3, 4000])
def test_uneven_allgather(rows, rank, size):
    parts = [np.full((rows + r, 3), r, np.int32) for r in range(size)]
    np.testing.assert_array_equal(hvd.numpy.allgather(parts[rank]), np.concatenate(parts))


def test_lists_and_scalars(rank, size):
    assert hvd.numpy.allreduce([rank, 1], op=hvd.Sum).tolist() == [size * (size - 1) // 2, size]
    assert hvd.numpy.allreduce(2.5) == 2.5


def test_scales_must_be_finite():
    with pytest.raises(ValueError, match="'allreduce.x': prescale_factor nan .* must be finite"):
        hvd.numpy.allreduce(np.ones(2), name="x", prescale_factor=float("nan"))


@pytest.mark.parametrize("name", ["", "x" * 300, "ä" * 200], ids=["empty", "long", "long in UTF-8"])
def test_names_too_short_and_too_long(name):
    if name:
        with pytest.raises(ValueError, match="longer than 255 bytes"):
            hvd.numpy.allreduce(np.ones(2), name=name)
    else:  # the kind is in front of it, so the tensor still has a name
        assert hvd.numpy.allreduce(np.ones(2), name=name)[0] == 1


def test_names_in_utf8(size):
    assert hvd.numpy.allreduce(np.ones(2), op=hvd.Sum, name="größe/😀")[0] == size
