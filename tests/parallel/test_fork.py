"""Processes forked from a rank: data loaders work; other children get errors, not hangs."""

import os
import pickle
import subprocess
import threading

import mxnet as mx
import numpy as np
from mxnet import gluon
from nets import backward, dense_net, weights
from trained import assert_equal_on_all_ranks

import hvdlite as hvd
from hvdlite.core.collectives import start_all
from hvdlite.core.native import lib


def in_child(function):
    """Return what the function returns in a forked child."""
    mx.nd.waitall()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, pickle.dumps(function()))
        finally:
            os._exit(0)  # skip exit functions, which belong to the parent
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    return pickle.loads(data)


def error_of(call) -> str:
    try:
        call()
    except ValueError as error:
        return str(error)
    return "no error"


def test_calls_of_a_forked_child_are_refused(size):
    """Each collective raises an error in the child; shutdown() does nothing there."""
    calls = [lambda: hvd.numpy.allreduce(np.ones(2)), hvd.barrier, hvd.shutdown]
    texts = in_child(lambda: [error_of(call) for call in calls] + [hvd.is_initialized()])
    refused = "this process was forked after hvdlite.init(): a child can't take part in the job; "
    refused += "leave this call to the process that the launcher has started"
    assert texts == [refused, refused, "no error", False]
    assert hvd.is_initialized()
    assert hvd.allreduce(mx.nd.ones(1), op=hvd.Sum).asscalar() == size


def test_a_forked_worker_may_ask_for_rank_and_size():
    """Scripts that shard an IterableDataset call rank() and size() in the workers."""
    asked = hvd.rank, hvd.size, hvd.local_rank, hvd.cross_size
    assert in_child(lambda: [ask() for ask in asked]) == [ask() for ask in asked]


def test_a_forked_child_does_not_wait_for_its_parents_handles(rank, size):
    """At the fork, threads of the parent may wait for a handle and hold its locks."""
    x = np.ones((size, 2))
    known, done = hvd.numpy.allreduce_async(x, op=hvd.Sum), hvd.allreduce_async(mx.nd.ones(1))
    hvd.synchronize(known)
    live = [done]
    if rank == 0 and size > 1:
        live += [hvd.numpy.allreduce_async(x, name="l"), hvd.numpy.allgather_async(x, name="l")]
    waiters = [threading.Thread(target=handle.synchronize) for handle in live[1:]]
    for waiter in waiters:
        waiter.start()
    texts, polled, result = in_child(
        lambda: ([error_of(h.synchronize) for h in live], [h.poll() for h in live],
                 known.synchronize().tolist())
    )  # fmt: skip
    hvd.barrier()
    if not waiters:
        hvd.numpy.allreduce(x, name="l")
        hvd.numpy.allgather(x, name="l")
    for waiter in waiters:
        waiter.join()
    refused = f"the handle belongs to process {os.getpid()}, and this process was forked from it"
    assert all(text.startswith(refused) for text in texts)
    assert all(polled)
    assert result == [[size] * 2] * size
    hvd.synchronize(done)


def test_a_forked_child_frees_its_parents_collectives_without_waiting(rank, size):
    """For example, an optimizer's bucket has a collective in progress at the fork."""
    x, out = np.ones(2), np.ones(2)
    started = start_all(lib.HVD_ALLREDUCE, ["s"], [x], [out], [{"op": hvd.Sum}]) if rank == 0 else 0
    text = in_child(lambda: error_of(started.finish) if started else "")
    hvd.barrier()
    started = started or start_all(lib.HVD_ALLREDUCE, ["s"], [x], [out], [{"op": hvd.Sum}])
    started.finish()
    assert out.tolist() == [size] * 2
    assert size == 1 or rank or f"tensor 's' was under way in process {os.getpid()} when" in text


def test_a_data_loader_with_forked_workers_works(rank, size):
    """The fork may happen while the last step's gradients are in progress."""
    rows = np.random.RandomState(rank).randn(24, 6).astype("float32")
    dataset = gluon.data.ArrayDataset(rows, np.arange(24))
    net = dense_net()
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.05})
    for epoch in range(2):
        loader = gluon.data.DataLoader(dataset, batch_size=4, num_workers=2, timeout=100)
        seen = []
        for x, index in loader:
            index = index.asnumpy().astype(int)  # MXNet 2 gives a float index
            np.testing.assert_array_equal(x.asnumpy(), rows[index])
            seen += index.tolist()
            backward(net, x)
            trainer.step(4)
        assert seen == list(range(24)), f"epoch {epoch}"
    assert_equal_on_all_ranks(weights(net))


def test_a_subprocess_may_start_while_a_collective_is_in_progress(rank, size):
    y = hvd.allreduce(mx.nd.ones((100_000,)), op=hvd.Sum)
    assert subprocess.run(["echo", "hello"], capture_output=True).stdout == b"hello\n"
    assert (y.asnumpy() == size).all()
