"""What goes wrong in Horovod 0.28.1 for MXNet, named by its symptom; here it does not.

docs/horovod.md lists all such defects, and where the others' tests are.
"""

import mxnet as mx
import numpy as np
import pytest
from nets import backward, batch_of, dense_net, weights
from trained import assert_equal_on_all_ranks

import hvdlite as hvd
from hvdlite.mxnet import push


def errors_of(waits) -> str:
    """All that MXNet tells: one error at a time, and each to the first who waits."""
    texts = []
    for wait in waits:
        try:
            wait()
        except mx.MXNetError as error:
            texts.append(str(error))
    return "; ".join(texts)


@pytest.mark.parametrize("grouped", [False, True], ids=["alone", "grouped"])
def test_0d_among_others_leaves_elements_unreduced(grouped, rank, size):
    """Horovod counts no element for a 0-d tensor, so a fused batch ends before its last ones."""
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


def test_group_with_a_name_under_way_is_sent_in_part(rank, size, several, asynchronous):
    """Rank 0 alone sends its group twice: of the second nothing is sent, and the first is right."""

    def group(start):
        arrays = [mx.nd.full((i + 1,), start + i) for i in range(3)]
        return hvd.grouped_allreduce_(arrays, op=hvd.Sum, name="twice")

    if rank == 0:
        first = group(1)
        push.submit_all()  # MXNet runs operations on several threads, in any order
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


NO_DATA = "tensor 'allreduce.gradient': no data from rank {}: an operator failed there; its error"


def gradient_of(rank: int, fails: bool):
    """Computed by an operator that can fail: when MXNet runs it, not when it is called."""
    return mx.nd.random.normal(0, -1 if fails else 1, (4,)) * 0 + rank


@pytest.mark.usefixtures("several", "asynchronous")
@pytest.mark.parametrize("grouped", [False, True], ids=["alone", "grouped"])
def test_gradient_that_failed_on_one_rank_hangs_the_others(grouped, rank, size):
    """The rank that failed lives on. The others are told, and the next step is as before."""
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


def test_step_after_a_failed_one_is_paired_with_it(rank, size, several, asynchronous):
    """The rank that failed has nothing to wait for: it comes to the next step before the others."""
    ahead = rank == size - 1
    gradient = gradient_of(rank, fails=ahead)
    for step in range(2):
        if step == 0 and not ahead:
            hvd.barrier()  # the other one has submitted both steps
        hvd.allreduce_(gradient, op=hvd.Sum, name="gradient")
        if step == 0:
            with pytest.raises(mx.MXNetError):
                gradient.wait_to_read()
            gradient[:] = 1
    push.submit_all()
    if ahead:
        hvd.barrier()
    np.testing.assert_array_equal(gradient.asnumpy(), size)


def test_step_after_a_failed_one_overtakes_it(rank, size, several, asynchronous):
    """MXNet tells of a failure before the step that failed is submitted, without its data."""
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


def test_layer_that_fails_on_one_rank_hangs_a_training(rank, several, asynchronous):
    """The step is left out on all ranks, which hear why, and training goes on."""
    net = dense_net()
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    arrays = [param.data() for param in net.collect_params().values()]
    for step in range(4):
        before = weights(net)
        noise = mx.nd.random.normal(0, -1 if rank == 0 and step == 2 else 1, (4, 6))
        backward(net, mx.nd.array(batch_of(rank, step)) + noise * 0)
        trainer.step(4)
        if step == 2:
            # waitall() first: what is raised while updates are still to come does not stop them
            text = errors_of([*[mx.nd.waitall] * 20, *(array.wait_to_read for array in arrays)])
            assert ("has to be positive" if rank == 0 else "no data from rank 0") in text
        changed = any((before[name] != w).any() for name, w in weights(net).items())
        assert changed == (step != 2)
    assert_equal_on_all_ranks(weights(net))
