"""Bad input that concerns one tensor: the same clear error on every rank, and the job goes on."""

import mxnet as mx
import numpy as np
import pytest

import hvdlite as hvd
from hvdlite.mxnet import push

pytestmark = pytest.mark.usefixtures("several")


def error_of(call) -> str:
    with pytest.raises((mx.MXNetError, hvd.HvdliteError)) as caught:
        call().wait_to_read()
    return str(caught.value)


def others(size: int) -> str:
    return {2: "rank 1", 3: "ranks 1, 2"}.get(size, f"ranks 1-{size - 1}")


def check(call, name: str, what: str, first: str, second: str) -> None:
    """`call` fails everywhere with one text that names everything; then it is as before."""
    text = error_of(call)
    rank0, rest = "rank 0", others(hvd.size())
    expected = (
        f"tensor '{name}': ranks disagree on the {what}: {rank0}: {first}; {rest}: {second}. "
        f"Submit the same {what} on every rank."
    )
    assert expected in text
    assert len(set(hvd.allgather_object(text))) == 1
    y = hvd.allreduce(mx.nd.ones((2,)), op=hvd.Sum, name="after")
    assert (y.asnumpy() == hvd.size()).all()


def differs(rank: int, first, second):
    return first if rank == 0 else second


@pytest.mark.parametrize("repeat", [1, 2])
def test_shape(rank, repeat):
    x = mx.nd.ones(differs(rank, (17, 3), (18, 3)))
    check(lambda: hvd.allreduce_(x, name="w"), "allreduce.w", "shape", "(17, 3)", "(18, 3)")


def test_number_of_dimensions(rank):
    x = mx.nd.ones(differs(rank, (6,), (2, 3)))
    check(lambda: hvd.broadcast(x, 0, name="w"), "broadcast.w", "shape", "(6,)", "(2, 3)")


def test_columns_of_an_allgather(rank):
    x = mx.nd.ones(differs(rank, (2, 3), (2, 4)))
    check(lambda: hvd.allgather(x, name="w"), "allgather.w", "shape", "(2, 3)", "(2, 4)")


def test_dtype(rank):
    x = mx.nd.ones((4,), dtype=differs(rank, "float32", "int32"))
    check(lambda: hvd.allreduce_(x, name="w"), "allreduce.w", "dtype", "float32", "int32")
    check(lambda: hvd.allgather(x, name="w"), "allgather.w", "dtype", "float32", "int32")


def test_op(rank):
    op = differs(rank, hvd.Sum, hvd.Average)
    call = lambda: hvd.allreduce(mx.nd.ones(3), op=op, name="w")  # noqa: E731
    check(call, "allreduce.w", "op", "Sum", "Average")


def test_scales(rank):
    scale = differs(rank, 0.5, 2.0)
    check(
        lambda: hvd.allreduce(mx.nd.ones(3), prescale_factor=scale, name="w"),
        "allreduce.w",
        "prescale_factor and postscale_factor",
        "0.5 and 1",
        "2 and 1",
    )


def test_root(rank):
    root = differs(rank, 1, 0)
    check(
        lambda: hvd.broadcast(mx.nd.ones(3), root, name="w"), "broadcast.w", "root_rank", "1", "0"
    )


def test_known_tensor_that_changes_on_one_rank(rank):
    """Its signature is in the caches by then."""
    for _ in range(3):
        hvd.allreduce(mx.nd.ones((5,)), name="known").wait_to_read()
    x = mx.nd.ones(differs(rank, (5,), (6,)))
    check(lambda: hvd.allreduce(x, name="known"), "allreduce.known", "shape", "(5,)", "(6,)")
    y = hvd.allreduce(mx.nd.ones((5,)), op=hvd.Sum, name="known")
    assert (y.asnumpy() == hvd.size()).all()


def test_three_ways(rank, size):
    if size < 3:
        pytest.skip("needs three ranks")
    text = error_of(lambda: hvd.allreduce(mx.nd.ones((rank + 1,)), name="w"))
    assert "rank 0: (1,); rank 1: (2,); rank 2: (3,)" in text


def test_numpy_raises_the_same(rank, size):
    with pytest.raises(hvd.HvdliteError) as caught:
        hvd.numpy.allreduce(np.ones(3 + (rank == 0)), name="w")
    assert f"shape: rank 0: (4,); {others(size)}: (3,)" in str(caught.value)
    with pytest.raises(hvd.HvdliteError, match="dtype: rank 0: int32; .*: int64"):
        hvd.numpy.allgather(np.ones(3, "int32" if rank == 0 else "int64"))


@pytest.mark.usefixtures("asynchronous")
def test_the_others_in_flight_are_not_harmed(rank, size):
    """One bad tensor among many that could be fused with it."""
    good = [mx.nd.full((9,), rank) for _ in range(20)]
    for i, x in enumerate(good):
        hvd.allreduce_(x, op=hvd.Sum, name=f"good{i}")
        if i == 10:
            bad = hvd.allreduce(mx.nd.ones((9 + rank,)), op=hvd.Sum, name="bad")
    for x in good:
        np.testing.assert_array_equal(x.asnumpy(), size * (size - 1) / 2)
    assert "tensor 'allreduce.bad'" in error_of(lambda: bad)


@pytest.mark.usefixtures("asynchronous")
def test_the_same_name_twice(rank, size):
    """Rank 0 alone does it; what it submitted first still completes, on every rank."""
    if rank == 0:
        first = hvd.allreduce_(mx.nd.ones((3,)), op=hvd.Sum, name="twice")
        push.submit_all()  # MXNet runs operations on several threads, in any order
        second = hvd.allreduce_(mx.nd.ones((3,)), op=hvd.Sum, name="twice")
        text = error_of(lambda: second)
        assert "tensor 'allreduce.twice' was submitted twice on this rank" in text
        assert "give each its own name" in text
    hvd.allgather_object("rank 0 has got its error")
    if rank != 0:
        first = hvd.allreduce_(mx.nd.ones((3,)), op=hvd.Sum, name="twice")
    np.testing.assert_array_equal(first.asnumpy(), size)


def test_what_depends_on_a_failed_tensor_fails(rank):
    x = mx.nd.ones((3 + (rank == 0),))
    text = error_of(lambda: hvd.allreduce(x, name="bad") * 2 + 1)
    assert "tensor 'allreduce.bad'" in text


def test_gradients_of_a_failed_operator(rank, size):
    """Not hvdlite's fault: an operator fails on every rank; what used its result fails alike."""
    with pytest.raises(mx.MXNetError, match="has to be positive"):  # when it runs
        hvd.allreduce_(mx.nd.random.normal(0, -1, (2,)), name="poisoned").wait_to_read()
    y = hvd.allreduce(mx.nd.ones((2,)), op=hvd.Sum)
    assert (y.asnumpy() == size).all()
