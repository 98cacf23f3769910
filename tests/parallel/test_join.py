"""join(): ranks with different numbers of batches."""

import mxnet as mx
import numpy as np

import hvdlite as hvd
import hvdlite.numpy


def test_many_tensors_at_once_that_the_joined_ranks_have_never_seen(rank, size):
    if rank == size - 1:
        arrays = [mx.nd.full((7 * i + 1,), i) for i in range(30)]
        for i, array in enumerate(arrays):
            hvd.allreduce_(array, name=f"unseen{i}", op=hvd.Sum if i % 2 else hvd.Average)
        for i, array in enumerate(arrays):
            assert (array.asnumpy() == i).all()
    assert hvd.join() == size - 1


def test_pushed_and_not_waited_for(rank, size):
    """What was pushed before join() counts as submitted before it."""
    arrays = [mx.nd.ones((50_000,)) for _ in range(20)]
    for i, array in enumerate(arrays):
        hvd.allreduce_(array, name=f"pushed{i}", op=hvd.Sum)
    hvd.join()
    for array in arrays:
        assert (array.asnumpy() == size).all()


def test_join_of_a_process_set(several, rank, size):
    process_set = hvd.add_process_set(list(range(1, size)))
    if process_set.included():
        for _ in range(rank):
            hvd.numpy.allreduce(np.ones(2), name="own", process_set=process_set)
        assert hvd.join(process_set=process_set) == size - 1
    assert (hvd.numpy.allreduce(np.ones(2), op=hvd.Sum) == size).all()
    hvd.remove_process_set(process_set)
