"""Handles of collectives in each library: ``..._async``, ``poll`` and ``synchronize``."""

import numpy as np
import pytest
from libraries import in_place, libraries_that
from threads import outcomes

import hvdlite as hvd

every_handle = libraries_that(lambda lib: hasattr(lib.hvd, "allreduce_async"))
SUM = {"op": hvd.Sum}
OPTIONS = {
    "allreduce": SUM, "grouped_allreduce": SUM, "reducescatter": SUM, "grouped_reducescatter": SUM,
    "allgather": {}, "grouped_allgather": {}, "broadcast": {"root_rank": 0}, "alltoall": {},
}  # fmt: skip
OF_ROWS = ("allgather", "grouped_allgather", "alltoall")


def started(lib, verb: str, values, **options):
    """Start a collective of one array, or a grouped one of two equal arrays; return its handle."""
    x = lib.make(values)
    return getattr(lib.hvd, f"{verb}_async")([x, x] if verb.startswith("grouped") else x, **options)


@every_handle
@pytest.mark.parametrize("verb", OPTIONS)
def test_async_and_waiting_calls_give_the_same_result(lib, verb, rank, size):
    values = np.arange(size * 6.0).reshape(size, 6) + rank
    for more in ({}, {"splits": [1] * size}) if verb == "alltoall" else ({},):
        options = {**OPTIONS[verb], **more}
        handle = started(lib, verb, values, **options)
        assert isinstance(handle, hvd.Handle)
        got = hvd.synchronize(handle)
        assert hvd.poll(handle)
        x = lib.make(values)
        expected = getattr(lib.hvd, verb)([x, x] if verb.startswith("grouped") else x, **options)
        assert type(got) is type(expected)
        np.testing.assert_equal(lib.read_all(got), lib.read_all(expected))


@in_place
def test_handles_of_calls_in_place_return_the_given_array(lib, rank, size):
    x, y, z = (lib.make(np.full(3, rank)) for _ in range(3))
    assert hvd.synchronize(lib.hvd.allreduce_async_(x, op=hvd.Sum)) is x
    assert hvd.synchronize(lib.hvd.broadcast_async_(y, root_rank=size - 1)) is y
    assert hvd.synchronize(lib.hvd.grouped_allreduce_async_([z], op=hvd.Sum))[0] is z
    assert lib.read(x).tolist() == lib.read(z).tolist() == [sum(range(size))] * 3
    assert lib.read(y).tolist() == [size - 1] * 3


@every_handle
def test_starting_a_collective_does_not_wait_for_other_ranks(lib, rank, size):
    """Each rank also waits for its handles in a different order, with other calls in between."""
    verbs = [verb for verb in OPTIONS if not (lib.asks_for_rows and verb in OF_ROWS)]

    def start() -> list:
        values = np.full((size, 2), float(rank))
        return [started(lib, verb, values, name="late", **OPTIONS[verb]) for verb in verbs]

    handles = start() if rank == 0 else []
    assert size == 1 or not any(map(hvd.poll, handles))
    hvd.numpy.allreduce(np.ones(1), name="the others may start, too")
    handles, results = handles or start(), {}
    for i in np.random.RandomState(rank).permutation(len(verbs)):
        results[verbs[i]] = lib.read_all(hvd.synchronize(handles[i]))
        if i == rank % 3:
            hvd.numpy.allreduce(np.ones(1), name="between")
    assert all(map(hvd.poll, handles))
    everyone, total = np.arange(float(size)).repeat(2).reshape(size, 2), sum(range(size))
    for verb, result in results.items():
        first = result[0] if verb.startswith("grouped") else result
        expected = {
            "allreduce": np.full((size, 2), total), "reducescatter": np.full((1, 2), total),
            "allgather": everyone.repeat(size, 0), "alltoall": everyone,
            "broadcast": np.zeros((size, 2)),
        }[verb.removeprefix("grouped_")]  # fmt: skip
        np.testing.assert_array_equal(first, expected, verb)


@every_handle
def test_synchronize_raises_the_error_of_a_collective(lib, rank, size, several):
    """The error names an unnamed tensor after the line that started its collective."""
    errors = (hvd.HvdliteError, *lib.errors)
    with pytest.raises(errors, match="'allreduce.test_handles.py:.*ranks disagree on the shape"):
        hvd.synchronize(started(lib, "allreduce", np.ones(3 + (rank == 0))))
    with pytest.raises((ValueError, *lib.errors), match=f"rank {size - 1}: .*splits"):
        splits = [3] * size if rank == size - 1 else None
        hvd.synchronize(started(lib, "alltoall", np.ones(size), splits=splits))
    assert lib.call("allreduce", np.ones(1), op=hvd.Sum) == size  # the job goes on


@every_handle
def test_threads_that_share_handles_get_the_same_results(lib, rank, size):
    each = 20
    for i in range(4):
        ones, rows = np.ones(3, "float32"), np.full((size, 2), rank, "float32")
        handles = [started(lib, "allreduce", ones, op=hvd.Sum, name=f"s{n}") for n in range(each)]
        handles += [started(lib, "allgather", rows, name=f"g{n}") for n in range(each)]
        wrong = np.ones(1 + (rank == 0))
        handles += [started(lib, "allreduce", wrong, name="wrong")] if size > 1 else []
        results = outcomes(handles)
        for result in results[:each]:
            assert lib.read(result).tolist() == [size] * 3, i
        for result in results[each : 2 * each]:
            assert lib.read(result)[:, 0].tolist() == list(np.arange(size).repeat(size)), i
        for error in results[2 * each :]:
            assert isinstance(error, (hvd.HvdliteError, *lib.errors)), error
            assert "ranks disagree on the shape" in str(error)
