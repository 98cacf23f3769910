"""hvdlite.numpy: arrays of any layout, out=, arrays that share memory, and barrier()."""

import resource

import numpy as np
import pytest
from numbers_of_ranks import adasum, part_of, same_everywhere

import hvdlite as hvd

ROWS, COLUMNS = 7, 3


def unaligned(x):
    """Return a copy of the array at an odd address."""
    raw = np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
    raw[:] = x
    return raw


VIEWS = {
    "transposed": lambda x: x.T,
    "strided": lambda x: x[::2, 1::3],
    "reversed": lambda x: x[::-1],
    "column": lambda x: x[:, 1],
    "in Fortran's order": np.asfortranarray,
    "unaligned": unaligned,
}


@pytest.mark.parametrize("view", VIEWS)
def test_arrays_of_any_layout_are_reduced(view, rank, size):
    x = VIEWS[view](np.arange(60.0).reshape(6, 10) * rank)
    assert not (x.flags.c_contiguous and x.flags.aligned)
    once = np.array(VIEWS[view](np.arange(60.0).reshape(6, 10)))
    total = hvd.numpy.allreduce(x, op=hvd.Sum)
    np.testing.assert_array_equal(total, once * (size * (size - 1) // 2))
    np.testing.assert_array_equal(hvd.numpy.broadcast(x, size - 1), once * (size - 1))
    expected = np.concatenate([once * r for r in range(size)])
    gathered = hvd.numpy.allgather(x)
    np.testing.assert_array_equal(gathered, expected)
    # a small result is a copy, so it does not keep a buffer of the C library alive
    assert gathered.flags.owndata


# ---- out= ----


def own(rank: int) -> np.ndarray:
    return np.arange(ROWS * COLUMNS, dtype=float).reshape(ROWS, COLUMNS) * (rank + 1)


def calls(rank: int, size: int) -> dict:
    """Return kind -> (function of the array and of out=, expected result)."""
    everyone = np.stack([own(r) for r in range(size)])
    splits = [2] + [0] * (size - 1)
    part = everyone.max(0)[part_of(ROWS, rank, size)]
    to_first = np.concatenate([own(r)[:2] for r in range(size)]) if rank == 0 else own(0)[:0]
    return {
        "allreduce": (lambda x, out: hvd.numpy.allreduce(x, out=out), everyone.mean(0)),
        "broadcast": (lambda x, out: hvd.numpy.broadcast(x, size - 1, out=out), everyone[-1]),
        "allgather": (lambda x, out: hvd.numpy.allgather(x, out=out), np.concatenate(everyone)),
        "reducescatter": (lambda x, out: hvd.numpy.reducescatter(x, op=hvd.Max, out=out), part),
        "alltoall": (lambda x, out: hvd.numpy.alltoall(x, splits, out=out)[0], to_first),
    }


@pytest.mark.parametrize("kind", calls(0, 1))
def test_the_result_is_written_to_out(kind, rank, size):
    """out may have any memory order, be the input itself, or overlap the input."""
    call, expected = calls(rank, size)[kind]
    x = own(rank)
    x.flags.writeable = False
    for order in ("C", "F", "strided"):
        out = np.full(expected.shape, -1.0, order="F" if order == "F" else "C")
        if order == "strided":
            out = np.full((2 * len(expected), COLUMNS + 1), -1.0)[::2, :-1]
        assert call(x, out) is out
        np.testing.assert_allclose(out, expected)
        np.testing.assert_array_equal(x, own(rank))
        assert order != "strided" or (out.base[1::2] == -1).all()
    for shift in (0, 1):
        memory = np.zeros((2 * ROWS * size, COLUMNS))
        memory[:ROWS] = own(rank)
        out = memory[shift : shift + len(expected)]
        assert call(memory[:ROWS], out) is out
        np.testing.assert_allclose(out, expected)


def test_an_out_of_another_shape_or_dtype_is_refused(rank, size):
    x, read_only = np.ones((4, 2)), np.zeros((4, 2))
    read_only.flags.writeable = False
    bad = {
        "float64 of shape (4, 3): expected float64 of shape (4, 2)": np.zeros((4, 3)),
        "float32 of shape (4, 2): expected float64 of shape (4, 2)": np.zeros((4, 2), "float32"),
        "read-only: expected an array": read_only,
        "a list: expected an array": [[0.0, 0.0]] * 4,
    }
    for text, out in bad.items():
        with pytest.raises(ValueError) as caught:
            hvd.numpy.allreduce(x, name="x", out=out)
        assert f"tensor 'allreduce.x': out is {text}" in str(caught.value)
    with pytest.raises(ValueError, match="of shape .rows of all ranks, 2"):
        hvd.numpy.allgather(x, name="x", out=np.zeros((4 * size, 3)))
    with pytest.raises(ValueError, match="out has 1 arrays: expected 2"):
        hvd.numpy.grouped_allreduce([x, x], out=[x])
    # only the last rank's out is wrong: only the last rank gets an error
    wrong = rank == size - 1
    out = np.zeros((3 * size + wrong, 2))
    if wrong:
        with pytest.raises(ValueError, match=rf"\({3 * size + 1}, 2\): expected .*\({3 * size}, 2"):
            hvd.numpy.allgather(np.ones((3, 2)), name="x", out=out)
    else:
        assert hvd.numpy.allgather(np.ones((3, 2)), name="x", out=out) is out
    assert (out == (0 if wrong else 1)).all()


def test_grouped_calls_write_into_out(rank, size):
    arrays = [own(rank) + i for i in range(3)]
    everyone = [np.stack([own(r) + i for r in range(size)]) for i in range(3)]
    part = part_of(ROWS, rank, size)
    for call, op, expected in (
        (hvd.numpy.grouped_allreduce, hvd.Sum, [each.sum(0) for each in everyone]),
        (hvd.numpy.grouped_allgather, None, [np.concatenate(each) for each in everyone]),
        (hvd.numpy.grouped_reducescatter, hvd.Min, [each.min(0)[part] for each in everyone]),
    ):
        outs = [np.empty_like(each) for each in expected]
        results = call(arrays, out=outs, **({} if op is None else {"op": op}))
        for out, result, each in zip(outs, results, expected):
            assert result is out
            np.testing.assert_array_equal(out, each)
    x, y = own(rank), own(rank) + 1  # in place, with one array twice
    hvd.numpy.grouped_allreduce([x, y, x], op=hvd.Sum, out=[x, y, x])
    np.testing.assert_array_equal(x, sum(own(r) for r in range(size)))
    np.testing.assert_array_equal(y, x + size)


@pytest.mark.parametrize(
    "outs",
    (
        [slice(0, 6), slice(6, 12), slice(12, 18)],  # outputs in place
        [slice(18, 24), slice(24, 30), slice(30, 36)],
        [slice(6, 12), slice(18, 24), slice(24, 30)],  # the memory of output 0 is also input 1
        [slice(3, 9), slice(18, 24), slice(24, 30)],
        [slice(18, 24), slice(20, 26), slice(30, 36)],  # two outputs overlap
        [slice(0, 6), slice(18, 36, 3), slice(12, 18)],  # one output is not contiguous
    ),
)
def test_grouped_calls_write_into_overlapping_outs_correctly(rank, size, outs):
    memory, expected = np.arange(36.0) * (rank + 1), np.arange(36.0) * (rank + 1)
    for i, out in enumerate(outs):
        expected[out] = np.arange(6 * i, 6 * i + 6) * sum(range(1, size + 1))
    inputs = [memory[0:6], memory[6:12], memory[12:18]]
    hvd.numpy.grouped_allreduce(inputs, op=hvd.Sum, out=[memory[out] for out in outs])
    np.testing.assert_array_equal(memory, expected)


def test_a_grouped_call_in_place_allocates_no_copies(rank, size):
    """Copies would take 128 MiB."""
    arrays = [np.full(16 << 20, rank, np.float32) for _ in range(2)]
    hvd.numpy.barrier()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    hvd.numpy.grouped_allreduce(arrays, op=hvd.Sum, out=arrays)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before < 64 << 10  # KiB
    assert all((array == sum(range(size))).all() for array in arrays)


def test_allreduce_of_arrays_in_shared_memory_is_right_with_every_op(rank, size):
    """The core reduces such arrays in place, except with Adasum, which uses messages."""
    x, of_one = hvd.numpy.empty_shared(1000), 1 + np.arange(1000.0)
    everyone = [(r + 1) * of_one for r in range(size)]
    for op, expected in (
        (hvd.Min, of_one),
        (hvd.Product, np.prod(everyone, axis=0)),
        (hvd.Adasum, adasum(everyone)),
    ):
        x[:] = everyone[rank]
        hvd.numpy.allreduce(x, op=op, out=x)
        np.testing.assert_allclose(x, expected, rtol=1e-12)
        assert same_everywhere(x)


def test_barrier_waits_for_all_ranks(rank, size, tmp_path):
    folder = hvd.broadcast_object(tmp_path)
    for turn in range(5):
        (folder / f"{turn}.{rank}").touch()
        hvd.barrier()
        assert len(list(folder.glob(f"{turn}.*"))) == size
        hvd.barrier()  # a barrier in another line has another name


def test_the_error_of_a_group_has_the_fields_of_the_first_bad_tensor(rank, size):
    if size == 1:
        return
    arrays = [np.zeros(2 + (rank == size - 1)), np.zeros(2), np.zeros(4 + (rank == size - 1))]
    with pytest.raises(hvd.HvdliteError) as raised:
        hvd.numpy.grouped_allreduce(arrays, name="uneven")
    error = raised.value
    assert (error.kind, error.tensor) == ("mismatch", "allreduce.uneven[0]")
    assert "allreduce.uneven[2]" in str(error) and "uneven[1]" not in str(error)
    assert len(set(hvd.allgather_object(str(error)))) == 1
