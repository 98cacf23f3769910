"""Errors where a script of Horovod's catches them: at the call, as an MXNetError."""

import pickle

import mxnet as mx
import numpy as np
import pytest

import hvdlite as hvd

# Every collective of whose result the shape is only known from all ranks, or is in Horovod.
NEGOTIATED = {
    "allgather": lambda x: hvd.allgather(x, name="w"),
    "grouped_allgather": lambda x: hvd.grouped_allgather([x[:], x], name="w"),
    "alltoall": lambda x: hvd.alltoall(x, name="w"),
    "alltoall with splits": lambda x: hvd.alltoall(x, [1] * hvd.size(), name="w"),
    "reducescatter": lambda x: hvd.reducescatter(x, name="w"),
    "grouped_reducescatter": lambda x: hvd.grouped_reducescatter([x[:], x], name="w"),
}


def columns(rank: int, size: int):
    return mx.nd.ones((size, 3 + (rank == 0)))


def dimensions(rank: int, size: int):
    return mx.nd.ones((size, 6) if rank == 0 else (size, 2, 3))


def dtype(rank: int, size: int):
    return mx.nd.ones((size, 3), dtype="int32" if rank == 0 else "float32")


@pytest.mark.parametrize("recording", [False, True], ids=["", "recording"])
@pytest.mark.parametrize("differing", [columns, dimensions, dtype])
@pytest.mark.parametrize("kind", NEGOTIATED)
def test_a_disagreement_is_raised_by_the_call(kind, differing, recording, rank, size, several):
    what = "dtype" if differing is dtype else "shape"
    with mx.autograd.record(recording), pytest.raises(
        mx.MXNetError, match=f"ranks disagree on the {what}: rank 0: "
    ) as caught:
        NEGOTIATED[kind](differing(rank, size))
    assert len(set(hvd.allgather_object(str(caught.value)))) == 1
    mx.nd.waitall()  # nothing is left that would strike a later line
    NEGOTIATED[kind](mx.nd.ones((size, 3)))


SIZE = hvd.size()
REFUSED = {
    "float splits": lambda: hvd.alltoall(mx.nd.ones(SIZE), splits=mx.nd.ones(SIZE)),
    "float splits of NumPy": lambda: hvd.numpy.alltoall(np.ones(SIZE), mx.nd.ones(SIZE)),
    "too long splits": lambda: hvd.alltoall(mx.nd.ones(SIZE), splits=[SIZE + 1] + [0] * (SIZE - 1)),
    "an average of bools": lambda: hvd.allreduce(mx.nd.ones(3, dtype="bool")),
    "a root that there is not": lambda: hvd.broadcast(mx.nd.ones(3), root_rank=SIZE),
}
if SIZE > 1:  # one rank takes any number of rows
    REFUSED["rows that can't be dealt out"] = lambda: hvd.alltoall(mx.nd.ones(SIZE + 1))


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_what_horovod_raises_as_mxnet_error_is_one_and_a_value_error(call):
    for kind in (ValueError, mx.MXNetError, RuntimeError, hvd.HvdliteError):
        with pytest.raises(kind):
            call()


def test_an_error_that_comes_by_itself_is_an_mxnet_error_too(rank, several):
    """Not by way of an array of MXNet's."""
    with pytest.raises(mx.MXNetError, match="ranks disagree") as caught:
        hvd.numpy.allreduce(np.ones(3 + (rank == 0)), name="w")
    assert isinstance(caught.value, hvd.HvdliteError)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert type(copy) is type(caught.value) and str(copy) == str(caught.value)


@pytest.mark.parametrize(
    "make",
    [tuple, np.array, lambda s: list(map(float, s)), lambda s: mx.nd.array(s, dtype="int32")],
)
def test_splits_of_any_other_kind_are_taken(make, rank, size):
    y, _ = hvd.alltoall(mx.nd.full((size, 2), rank), splits=make([1] * size))
    np.testing.assert_array_equal(y.asnumpy()[:, 0], np.arange(size))
