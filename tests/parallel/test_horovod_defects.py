"""hvdlite does not have the defects of Horovod 0.28.1 for MXNet.

docs/horovod.md lists all these defects and the test of each.
"""

import pickle

import mxnet as mx
import numpy as np
import pytest
from nets import backward, batch_of, dense_net, weights
from trained import assert_equal_on_all_ranks

import hvdlite as hvd
from hvdlite.mxnet import push


def errors_of(waits) -> str:
    """Return all errors of MXNet, which raises each error only once, in the first wait."""
    texts = []
    for wait in waits:
        try:
            wait()
        except mx.MXNetError as error:
            texts.append(str(error))
    return "; ".join(texts)


@pytest.mark.parametrize("grouped", [False, True], ids=["alone", "grouped"])
def test_a_0d_tensor_and_the_other_tensors_of_its_batch_are_reduced(grouped, rank, size):
    """Horovod counts a 0-d tensor as 0 elements, so it leaves out the end of a fused batch."""
    with mx.util.np_shape(True):
        shapes = [(), (3,), (), (2, 2), ()]
        arrays = [mx.np.full(shape, rank + i) for i, shape in enumerate(shapes)]
        if grouped:
            results = hvd.grouped_allreduce(arrays, op=hvd.Sum)
        else:
            results = [hvd.allreduce(x, op=hvd.Sum, name=f"x{i}") for i, x in enumerate(arrays)]
        for i, (shape, y) in enumerate(zip(shapes, results)):
            expected = np.full(shape, sum(r + i for r in range(size)))
            np.testing.assert_array_equal(y.asnumpy(), expected)


def test_a_group_with_a_name_that_is_in_progress_sends_nothing(rank, size, several, asynchronous):
    """Only rank 0 submits the group twice: the second submission sends nothing."""

    def group(start):
        arrays = [mx.nd.full((i + 1,), start + i) for i in range(3)]
        return hvd.grouped_allreduce_(arrays, op=hvd.Sum, name="twice")

    if rank == 0:
        first = group(1)
        push.submit_all()  # MXNet may run operations on several threads in any order
        text = errors_of(array.wait_to_read for array in group(100))
        for i in range(3):
            assert f"'allreduce.twice[{i}]' was submitted twice on this rank" in text
    hvd.allgather_object("rank 0 has got its errors")
    if rank != 0:
        first = group(1)
    for i, array in enumerate(first):
        assert (array.asnumpy() == size * (1 + i)).all()
    for i, array in enumerate(group(5)):
        assert (array.asnumpy() == size * (5 + i)).all()


NO_DATA = "tensor 'allreduce.gradient': no data from rank {}: an operator failed there; see the"


def gradient_of(rank: int, fails: bool):
    """Return an array; if `fails`, its operator raises when MXNet runs it, not when called."""
    return mx.nd.random.normal(0, -1 if fails else 1, (4,)) * 0 + rank


@pytest.mark.usefixtures("several", "asynchronous")
@pytest.mark.parametrize("grouped", [False, True], ids=["alone", "grouped"])
def test_no_rank_hangs_when_one_rank_fails_to_compute_a_gradient(grouped, rank, size):
    """All ranks get an error in the step that failed; the next step is reduced as usual."""
    failing = size - 1
    for step in range(3):
        gradient = gradient_of(rank, fails=rank == failing and step == 1)
        if grouped:
            hvd.grouped_allreduce_([mx.nd.ones(2), gradient], op=hvd.Sum, name="gradient")
        else:
            hvd.allreduce_(gradient, op=hvd.Sum, name="gradient")
        if step != 1:
            np.testing.assert_array_equal(gradient.asnumpy(), sum(range(size)))
            continue
        with pytest.raises(mx.MXNetError) as caught:
            gradient.wait_to_read()
        own, place = rank == failing, "gradient[1]" if grouped else "gradient"
        expected = "has to be positive" if own else NO_DATA.format(failing)
        assert expected.replace("gradient", place, 1) in str(caught.value)


def test_a_failed_step_is_not_paired_with_the_next_step(rank, size, several, asynchronous):
    """The rank that failed submits both steps before any other rank submits one."""
    ahead = rank == size - 1
    gradient = gradient_of(rank, fails=ahead)
    for step in range(2):
        if step == 0 and not ahead:
            hvd.barrier()  # wait until the rank that failed has submitted both steps
        hvd.allreduce_(gradient, op=hvd.Sum, name="gradient")
        if step == 0:
            with pytest.raises(mx.MXNetError):
                gradient.wait_to_read()
            gradient[:] = 1
    push.submit_all()
    if ahead:
        hvd.barrier()
    np.testing.assert_array_equal(gradient.asnumpy(), size)


def test_the_next_step_does_not_overtake_a_failed_step(rank, size, several, asynchronous):
    """MXNet raises the error before hvdlite tells the other ranks that a step's data is missing."""
    failing = size - 1
    for step in range(300):
        fails = step % 3 == 1
        gradient = gradient_of(rank, fails=rank == failing and fails) + step
        hvd.grouped_allreduce_([mx.nd.ones(2), gradient], op=hvd.Sum, name="gradient")
        if fails:
            with pytest.raises(mx.MXNetError):
                gradient.wait_to_read()
        else:
            expected = sum(range(size)) + size * step
            np.testing.assert_array_equal(gradient.asnumpy(), expected)


def test_no_rank_hangs_when_a_layer_fails_on_one_rank(rank, several, asynchronous):
    """All ranks skip the step and raise an error with the reason; training goes on."""
    net = dense_net()
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    arrays = [param.data() for param in net.collect_params().values()]
    for step in range(4):
        before = weights(net)
        noise = mx.nd.random.normal(0, -1 if rank == 0 and step == 2 else 1, (4, 6))
        backward(net, mx.nd.array(batch_of(rank, step)) + noise * 0)
        trainer.step(4)
        if step == 2:
            # call waitall() first: an error that it raises does not stop later updates
            text = errors_of([*[mx.nd.waitall] * 20, *(array.wait_to_read for array in arrays)])
            assert ("has to be positive" if rank == 0 else "no data from rank 0") in text
        changed = any((before[name] != w).any() for name, w in weights(net).items())
        assert changed == (step != 2)
    assert_equal_on_all_ranks(weights(net))


# ---- errors that the call raises as MXNetError, because scripts for Horovod catch them there ----

# Collectives whose result has a shape that depends on all ranks, in hvdlite or in Horovod.
NEGOTIATED = {
    "allgather": lambda x: hvd.allgather(x, name="w"),
    "grouped_allgather": lambda x: hvd.grouped_allgather([x[:], x], name="w"),
    "alltoall": lambda x: hvd.alltoall(x, name="w"),
    "alltoall with splits": lambda x: hvd.alltoall(x, [1] * hvd.size(), name="w"),
    "reducescatter": lambda x: hvd.reducescatter(x, name="w"),
    "grouped_reducescatter": lambda x: hvd.grouped_reducescatter([x[:], x], name="w"),
}


DIFFERENT = {  # the call on rank 0, and the call on the others
    "columns": lambda size: ({"shape": (size, 4)}, {"shape": (size, 3)}),
    "dimensions": lambda size: ({"shape": (size, 6)}, {"shape": (size, 2, 3)}),
    "dtype": lambda size: ({"shape": (size, 3), "dtype": "int32"}, {"shape": (size, 3)}),
}


@pytest.mark.parametrize("recording", [False, True], ids=["", "recording"])
@pytest.mark.parametrize("differing", DIFFERENT)
@pytest.mark.parametrize("kind", NEGOTIATED)
def test_a_waiting_call_raises_if_ranks_disagree(kind, differing, recording, rank, size, several):
    what = "dtype" if differing == "dtype" else "shape"
    with mx.autograd.record(recording), pytest.raises(
        mx.MXNetError, match=f"ranks disagree on the {what}: rank 0: "
    ) as caught:
        NEGOTIATED[kind](mx.nd.ones(**DIFFERENT[differing](size)[rank > 0]))
    assert len(set(hvd.allgather_object(str(caught.value)))) == 1
    mx.nd.waitall()  # raises nothing: no error is left for a later line
    NEGOTIATED[kind](mx.nd.ones((size, 3)))


SIZE = hvd.size()
REFUSED = {
    "float splits": lambda: hvd.alltoall(mx.nd.ones(SIZE), splits=mx.nd.ones(SIZE)),
    "float splits of NumPy": lambda: hvd.numpy.alltoall(np.ones(SIZE), mx.nd.ones(SIZE)),
    "too long splits": lambda: hvd.alltoall(mx.nd.ones(SIZE), splits=[SIZE + 1] + [0] * (SIZE - 1)),
    "an average of bools": lambda: hvd.allreduce(mx.nd.ones(3, dtype="bool")),
    "a root beyond the last rank": lambda: hvd.broadcast(mx.nd.ones(3), root_rank=SIZE),
}
if SIZE > 1:  # with one rank, any number of rows is right
    REFUSED["rows that can't be divided"] = lambda: hvd.alltoall(mx.nd.ones(SIZE + 1))


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_errors_have_the_classes_that_horovod_scripts_catch(call):
    for kind in (ValueError, mx.MXNetError, RuntimeError, hvd.HvdliteError):
        with pytest.raises(kind):
            call()


def test_an_error_of_a_numpy_collective_is_an_mxnet_error(rank, several):
    with pytest.raises(mx.MXNetError, match="ranks disagree") as caught:
        hvd.numpy.allreduce(np.ones(3 + (rank == 0)), name="w")
    assert isinstance(caught.value, hvd.HvdliteError)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert type(copy) is type(caught.value) and str(copy) == str(caught.value)


@pytest.mark.parametrize(
    "make",
    [tuple, np.array, lambda s: list(map(float, s)), lambda s: mx.nd.array(s, dtype="int32")],
)
def test_alltoall_takes_splits_of_other_types(make, rank, size):
    y, _ = hvd.alltoall(mx.nd.full((size, 2), rank), splits=make([1] * size))
    np.testing.assert_array_equal(y.asnumpy()[:, 0], np.arange(size))
