"""Handles: ``..._async``, ``poll`` and ``synchronize``."""

import gc
import signal
import threading
import weakref

import mxnet as mx
import numpy as np
import pytest
from libraries import both_libraries
from threads import outcomes

import hvdlite as hvd

ERRORS = (mx.MXNetError, hvd.HvdliteError)
CALLS = {
    "allreduce": lambda of, x, size: of.allreduce_async(x, op=hvd.Sum),
    "grouped_allreduce": lambda of, x, size: of.grouped_allreduce_async([x, x], op=hvd.Sum),
    "broadcast": lambda of, x, size: of.broadcast_async(x, root_rank=size - 1),
    "allgather": lambda of, x, size: of.allgather_async(x),
    "grouped_allgather": lambda of, x, size: of.grouped_allgather_async([x, x]),
    "reducescatter": lambda of, x, size: of.reducescatter_async(x, op=hvd.Sum),
    "grouped_reducescatter": lambda of, x, size: of.grouped_reducescatter_async([x], op=hvd.Sum),
    "alltoall": lambda of, x, size: of.alltoall_async(x),
    "alltoall_splits": lambda of, x, size: of.alltoall_async(x, splits=[1] * size),
}


def parts(result) -> list:
    return list(result) if isinstance(result, (list, tuple)) else [result]


@both_libraries
@pytest.mark.parametrize("kind", CALLS)
def test_the_result_is_that_of_the_call_that_waits(lib, kind, rank, size):
    x = lib.make(np.arange(size * 6, dtype="float32").reshape(size, 6) + np.float32(rank))
    handle = CALLS[kind](lib.hvd, x, size)
    assert isinstance(handle, hvd.Handle)
    got = hvd.synchronize(handle)
    assert hvd.poll(handle)

    class Waiting:
        def __getattr__(self, name):
            return getattr(lib.hvd, name.replace("_async", ""))

    expected = CALLS[kind](Waiting(), x, size)
    assert type(got) is type(expected)
    for one, other in zip(parts(got), parts(expected)):
        np.testing.assert_array_equal(lib.read(one), lib.read(other))


def test_a_call_does_not_wait_for_the_rows_of_others(rank, size):
    x = np.full((size, 2), float(rank))

    def begin() -> list:
        of = hvd.numpy
        return [of.allgather_async(x, name="rows"), of.alltoall_async(x, name="parts")]

    handles = begin() if rank == 0 else []
    assert size == 1 or not any(map(hvd.poll, handles))
    hvd.numpy.allreduce(np.ones(1), name="the others may start, too")
    handles = handles or begin()
    waited = {i: hvd.synchronize(handles[i]) for i in ([0, 1] if rank % 2 else [1, 0])}
    assert waited[0][:, 0].tolist() == [r for r in range(size) for _ in range(size)]
    assert waited[1][:, 0].tolist() == list(range(size))


def test_in_place(rank, size):
    x, y, z = (mx.nd.full((3,), rank) for _ in range(3))
    assert hvd.synchronize(hvd.allreduce_async_(x, op=hvd.Sum)) is x
    assert hvd.synchronize(hvd.broadcast_async_(y, root_rank=size - 1)) is y
    assert hvd.synchronize(hvd.grouped_allreduce_async_([z], op=hvd.Sum))[0] is z
    assert x.asnumpy().tolist() == z.asnumpy().tolist() == [sum(range(size))] * 3
    assert y.asnumpy().tolist() == [size - 1] * 3


@pytest.mark.usefixtures("several", "asynchronous")
@both_libraries
def test_poll_tells_whether_all_ranks_have_come(lib, rank, size):
    x = lib.make(np.ones(5, "float32"))
    if rank == 0:
        handle = lib.hvd.allreduce_async(x, op=hvd.Sum, name="late")
        assert not hvd.poll(handle)
        hvd.barrier()
    else:
        hvd.barrier()
        handle = lib.hvd.allreduce_async(x, op=hvd.Sum, name="late")
    while not hvd.poll(handle):
        pass
    assert lib.read(hvd.synchronize(handle)).tolist() == [size] * 5


@pytest.mark.usefixtures("several")
@both_libraries
def test_an_error_comes_with_synchronize(lib, rank, size):
    x = lib.make(np.ones(3 + (rank == 0), "float32"))
    with pytest.raises(ERRORS, match="tensor 'allreduce.w': ranks disagree on the shape"):
        hvd.synchronize(lib.hvd.allreduce_async(x, name="w"))
    y = lib.make(np.ones(2, "float32"))
    assert lib.read(lib.hvd.allreduce(y, name="w")).tolist() == [1, 1]


def test_what_can_not_be_right_is_raised_by_the_call():
    with pytest.raises(ValueError, match="is bool, which can't be averaged"):
        hvd.numpy.allreduce_async(np.ones(2, bool))
    with pytest.raises(ValueError, match="is bool, which can't be averaged"):
        hvd.allreduce_async(mx.nd.ones(2, dtype="bool"))


@both_libraries
def test_threads_that_share_handles_get_the_same_results(lib, rank, size):
    of, rounds, each = lib.hvd, 10, 100
    for i in range(rounds):
        ones = lib.make(np.ones(3, "float32"))
        rows = lib.make(np.full((size, 2), rank, "float32"))
        wrong = lib.make(np.ones(1 + (rank == 0), "float32"))
        handles = [of.allreduce_async(ones, op=hvd.Sum, name=f"s{n}") for n in range(each)]
        handles += [of.allgather_async(rows, name=f"g{n}") for n in range(each)]
        handles += [of.allreduce_async(wrong, name="wrong")] if size > 1 else []
        results = outcomes(handles)
        for result in results[:each]:
            assert lib.read(result).tolist() == [size] * 3, i
        for result in results[each : 2 * each]:
            assert lib.read(result)[:, 0].tolist() == list(np.arange(size).repeat(size)), i
        for error in results[2 * each :]:
            assert isinstance(error, ERRORS), error
            assert "ranks disagree on the shape" in str(error)


def test_what_follows_the_wait_is_done_once(size):
    """So ``out`` keeps what its user writes to it later."""
    out, calls = np.zeros(6)[::2], []
    handle = hvd.numpy.allreduce_async(np.ones(3), op=hvd.Sum, out=out).then(calls.append)
    outcomes([handle])
    assert len(calls) == 1
    assert calls[0] is out
    out[:] = 7
    hvd.synchronize(handle)
    assert out.tolist() == [7] * 3


def test_ctrl_c_ends_a_wait_beside_another_thread(size, rank):
    """The handle still gives its result, to both."""
    handle = hvd.numpy.allreduce_async(np.ones(3), op=hvd.Sum, name="late") if rank == 0 else None
    if handle is not None and size > 1:
        other = threading.Thread(target=handle.synchronize)
        other.start()
        alarm = threading.Timer(0.2, signal.raise_signal, [signal.SIGINT])
        alarm.start()
        with pytest.raises(KeyboardInterrupt):
            handle.synchronize()
        alarm.join()
    hvd.barrier()
    handle = handle or hvd.numpy.allreduce_async(np.ones(3), op=hvd.Sum, name="late")
    assert hvd.synchronize(handle).tolist() == [size] * 3


def test_handles_outlive_their_job(rank, size):
    """Also where the next job begins before they are waited for."""
    x, left = np.ones((size, 2)), []
    done = hvd.numpy.allgather_async(x, name="done")
    hvd.synchronize(done)
    if rank == 0 and size > 1:
        left = [hvd.numpy.allgather_async(x, name="left"), hvd.numpy.allreduce_async(x, name="l")]
    waiter = threading.Thread(target=outcomes, args=[left])
    waiter.start()
    hvd.shutdown()
    waiter.join()
    hvd.init()
    for error in outcomes(left):
        assert isinstance(error, hvd.HvdliteError)
        assert "shutdown()" in str(error)
    assert len(outcomes([done])[0]) == size * size
    assert hvd.numpy.allgather(x, name="left").shape == (size * size, 2)


def test_what_a_call_brings_outlives_its_handle_and_job(rank, size):
    """The C library has made the memory, and keeps it as long as the array lives."""
    long = np.full((1000, size), float(rank))
    gathered = hvd.numpy.allgather_async(long, name="long").synchronize()
    part = hvd.numpy.alltoall_async(long, [1000 // size] * size, name="part").synchronize()[0]
    view = gathered[1000 * rank :][:3]
    del gathered
    gc.collect()
    hvd.shutdown()
    hvd.init()
    others = [hvd.numpy.allgather(long + 1, name=f"long{i}") for i in range(5)]
    assert (view == rank).all()
    assert part[:, 0].tolist() == list(np.arange(size).repeat(1000 // size))
    assert all((other.reshape(size, -1) == np.arange(size)[:, None] + 1).all() for other in others)


@pytest.mark.usefixtures("asynchronous")
def test_a_handle_may_be_forgotten(size):
    """The memory stays until the work in it is done; then it is let go."""
    polled = []
    for i in range(40):
        array = np.ones(100_000)
        gone = weakref.ref(array)
        handle = hvd.numpy.allreduce_async(array, name=f"forgotten{i}")
        polled.append(threading.Thread(target=handle.poll))
        polled[-1].start()
        hvd.allreduce_async(mx.nd.ones(100_000), name=f"forgotten{i}.mx")
        del array, handle
    for thread in polled:
        thread.join()
    polled.clear()
    gc.collect()
    hvd.barrier()
    for _ in range(40):
        assert hvd.numpy.allreduce(np.ones(1), op=hvd.Sum)[0] == size
    assert gone() is None


def test_signatures_and_names():
    assert hvd.allreduce_async_.__name__ == "allreduce_async_"
    assert "out" in hvd.numpy.allreduce_async.__wrapped__.__code__.co_varnames
    assert hvd.numpy.allreduce.__name__ == "allreduce"
    assert "Start :func:`allgather`" in hvd.allgather_async.__doc__
