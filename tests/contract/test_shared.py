"""empty_shared(): arrays in memory that the ranks of a host share."""

import numpy as np
import pytest
from libraries import every_dtype_of, libraries_that
from numbers_of_ranks import check, model, numbers

import hvdlite as hvd
from hvdlite.core.native import ffi, lib
from hvdlite.core.shared_memory import SharedMemory

sharing = libraries_that(lambda lib: hasattr(lib.hvd, "empty_shared"))


def reduce_in_place(library, x, op):
    if library.in_place:
        assert library.hvd.allreduce_(x, op=op) is x
    else:
        assert library.hvd.allreduce(x, op=op, out=x) is x


def uncopied() -> bool:
    """Return True if the last collective read the arrays of all ranks where they are."""
    return ffi.string(lib.hvd_algorithm()) == b"direct allreduce"


@every_dtype_of()
def test_shared_arrays_and_parts_of_them_are_summed_in_place(lib, dtype, rank, size):
    """The parts begin at the same place on all ranks, then at different places."""
    if not hasattr(lib.hvd, "empty_shared"):
        pytest.skip("the library has no empty_shared()")
    for shape in ((), (7,), (300, 1001), (0, 3)):
        own = lib.make(numbers(dtype, shape, rank), dtype)
        x = lib.hvd.empty_shared(shape, own.dtype)
        assert x.dtype == own.dtype and tuple(x.shape) == shape
        x[...] = own
        reduce_in_place(lib, x, hvd.Sum)
        check(lib.read(x), model(dtype, shape, "Sum"), dtype)
    shape, long = (100, 1001), lib.hvd.empty_shared((400, 1001), own.dtype)
    for at in (100, 100 * (rank % 3)):
        part = long[at : at + 100]
        part[...] = lib.make(numbers(dtype, shape, rank), dtype)
        reduce_in_place(lib, part, hvd.Sum)
        check(lib.read(part), model(dtype, shape, "Sum"), dtype)


@sharing
def test_shared_arrays_are_reduced_without_a_copy(lib, rank, size, several):
    if hvd.cross_size() > 1 or SharedMemory.reserve() is None:
        pytest.skip("needs one host with shared memory")
    x = lib.hvd.empty_shared((1000, 300), lib.make(np.zeros(1, "float32")).dtype)
    for _ in range(4):
        x[...] = 1
        reduce_in_place(lib, x, hvd.Sum)
        assert uncopied() and (lib.read(x) == size).all()


@sharing
def test_many_shared_arrays_can_be_made_and_freed(lib, rank, size):
    """Ranks keep arrays for different times."""
    kept = []
    for i in range(40):
        x = lib.hvd.empty_shared(10_000)
        x[...] = rank
        reduce_in_place(lib, x, hvd.Sum)
        assert (lib.read(x) == size * (size - 1) // 2).all()
        kept = [x[i:], *kept[: 3 * rank]]


@sharing
def test_a_shared_array_outlives_its_job(lib, rank, size):
    x = lib.hvd.empty_shared(1000)
    hvd.shutdown()
    hvd.init()
    x[...] = rank
    reduce_in_place(lib, x, hvd.Max)
    assert (lib.read(x) == size - 1).all()


@sharing
def test_ranks_that_disagree_on_a_shared_array_get_one_error(lib, rank, size, several):
    with pytest.raises(hvd.HvdliteError, match="Give the same shape and dtype on every rank"):
        lib.hvd.empty_shared(3 + (rank == 0))
    x = lib.hvd.empty_shared(3)
    x[...] = 1
    reduce_in_place(lib, x, hvd.Sum)
    assert (lib.read(x) == size).all()
