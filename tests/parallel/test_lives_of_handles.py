"""Handles: callbacks, interrupted waits, and the lifetime of handles and their tensors' memory."""

import gc
import signal
import threading
import weakref

import mxnet as mx
import numpy as np
import pytest
from threads import outcomes

import hvdlite as hvd


def test_the_callback_of_a_handle_runs_only_once(size):
    """A second synchronize() does not overwrite what the user has written to ``out``."""
    out, calls = np.zeros(6)[::2], []
    handle = hvd.numpy.allreduce_async(np.ones(3), op=hvd.Sum, out=out).then(calls.append)
    outcomes([handle])
    assert len(calls) == 1
    assert calls[0] is out
    out[:] = 7
    hvd.synchronize(handle)
    assert out.tolist() == [7] * 3


def test_ctrl_c_ends_a_wait_while_another_thread_waits_too(size, rank):
    """Both threads still get the handle's result."""
    handle = hvd.numpy.allreduce_async(np.ones(3), op=hvd.Sum, name="late") if rank == 0 else None
    if handle is not None and size > 1:
        other = threading.Thread(target=handle.synchronize)
        other.start()
        alarm = threading.Timer(0.2, signal.raise_signal, [signal.SIGINT])
        with pytest.raises(KeyboardInterrupt):
            alarm.start()
            handle.synchronize()
        alarm.join()
    hvd.barrier()
    handle = handle or hvd.numpy.allreduce_async(np.ones(3), op=hvd.Sum, name="late")
    assert hvd.synchronize(handle).tolist() == [size] * 3


def test_results_outlive_their_handle_and_job(rank, size):
    """The C library allocates the memory and keeps it while the array lives."""
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


def test_a_dropped_handle_keeps_its_memory_until_the_work_ends(size, asynchronous):
    """When the work has ended, the memory is freed."""
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
