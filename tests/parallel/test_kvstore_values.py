"""What the kvstore dist_sync_mpi keeps: values, their rows, and optimizers that update them."""

import mxnet as mx
import numpy as np
import pytest
from kvstores import KEYS, assert_all, filled, sum_of_ranks
from mxnet import nd

import hvdlite as hvd

# ---- init, push, pull ----


@pytest.mark.parametrize("key", KEYS)
def test_init_push_pull(kv, key, rank, size):
    kv.init(key, filled(rank + 7))
    out = filled(0)
    kv.pull(key, out=out)
    assert_all(out, 7)
    for step in (1, 2):  # the sum replaces what was there
        pushed = filled(step * (rank + 1))
        kv.push(key, pushed)
        kv.pull(key, out=out)
        assert_all(out, step * sum_of_ranks(size))
        assert_all(pushed, step * (rank + 1))


def test_pushes_without_waiting(kv, size):
    kv.init("x", filled(0))
    outs = [filled(0) for _ in range(10)]
    for i, out in enumerate(outs):
        kv.push("x", filled(i))
        kv.pull("x", out=out)
    for i, out in enumerate(outs):
        assert_all(out, i * size)


def test_an_updater_of_the_users_own(kv, size):
    kv.init(["x", 3], [filled(1), filled(1)])
    seen = []

    def update(key, summed, kept):
        seen.append(key)
        kept += 2 * summed

    kv._set_updater(update)
    kv.push(["x", 3], [filled(1), filled(2)])
    outs = [filled(0), filled(0)]
    kv.pull(["x", 3], out=outs)
    assert seen == ["x", 3]
    assert_all(outs[0], 1 + 2 * size)
    assert_all(outs[1], 1 + 4 * size)


# ---- row_sparse_pull ----


@pytest.mark.parametrize("stype", ["row_sparse", "default"])
@pytest.mark.parametrize("ids", [[0, 2], [2, 2], [3, 0, 3], []], ids=str)
def test_row_sparse_pull(kv, stype, ids, rank):
    value = (nd.arange(12).reshape((4, 3)) + 1) * (rank + 1)
    kv.init("x", value.tostype(stype))
    out = nd.zeros((4, 3)).tostype("row_sparse")
    with mx.util.np_shape(not ids or mx.util.is_np_shape()):  # else MXNet can't make an empty array
        row_ids = nd.array(np.array(ids, "int64"), dtype="int64")
    kv.row_sparse_pull("x", out=out, row_ids=row_ids)
    expected = np.zeros((4, 3))
    expected[ids] = np.arange(1, 13).reshape(4, 3)[ids]
    np.testing.assert_array_equal(out.asnumpy(), expected)


def test_row_sparse_pull_of_lists(kv):
    value = nd.arange(8).reshape((4, 2)) + 1
    kv.init(["a", "b"], [value.tostype("row_sparse"), (2 * value).tostype("row_sparse")])
    first, second = nd.array([0, 1], dtype="int64"), nd.array([3], dtype="int64")

    def outs(n):
        return [nd.zeros((4, 2)).tostype("row_sparse") for _ in range(n)]

    def rows(array):
        return np.flatnonzero(array.asnumpy().any(axis=1)).tolist()

    both = outs(2)
    kv.row_sparse_pull("a", out=both, row_ids=first)  # one for all
    assert [rows(array) for array in both] == [[0, 1], [0, 1]]
    kv.row_sparse_pull("a", out=both, row_ids=[first, second])  # one each
    assert [rows(array) for array in both] == [[0, 1], [3]]
    kv.row_sparse_pull(["a", "b"], out=both, row_ids=[second, first])  # one each key
    assert [rows(array) for array in both] == [[3], [0, 1]]
    kv.row_sparse_pull(["a", "b"], out=both, row_ids=second)
    assert [rows(array) for array in both] == [[3], [3]]
    assert both[1].asnumpy()[3].tolist() == [14, 16]


def test_pull_of_sparse_values(kv, rank):
    value = nd.array([[0, 0], [1 + rank, 2]])
    kv.init("x", value.tostype("row_sparse"))
    dense, sparse = nd.zeros((2, 2)), nd.zeros((2, 2)).tostype("row_sparse")
    kv.pull("x", out=[dense, sparse])
    for out in (dense, sparse):
        np.testing.assert_array_equal(out.asnumpy(), [[0, 0], [1, 2]])


# ---- optimizers on the store ----


@pytest.mark.parametrize("key", KEYS)
def test_optimizer(kv, key, rank, size):
    kv.set_optimizer(mx.optimizer.SGD(learning_rate=0.5, momentum=0.9))
    kv.init(key, filled(rank))
    weight = filled(0)
    kv.push(key, filled(rank + 1))
    kv.pull(key, out=weight)
    step = 0.5 * sum_of_ranks(size)
    np.testing.assert_allclose(weight.asnumpy(), -step, rtol=1e-6)
    grad = filled(rank + 1)
    kv.pushpull(key, grad, out=weight)
    np.testing.assert_allclose(weight.asnumpy(), -step - 1.9 * step, rtol=1e-6)
    assert_all(grad, rank + 1)


def test_a_new_learning_rate_counts_at_once(kv, size):
    optimizer = mx.optimizer.SGD(learning_rate=1)
    kv.set_optimizer(optimizer)
    kv.init("x", filled(0))
    weight = filled(0)
    for lr in (1, 0.25):
        optimizer.set_learning_rate(lr)
        kv.pushpull("x", filled(1), out=weight)
    assert_all(weight, -1.25 * size)


def test_half_precision_weights_with_float32_masters(kv, size):
    kv.set_optimizer(mx.optimizer.SGD(learning_rate=1, multi_precision=True))
    kv.init("x", filled(1, dtype="float16"))
    weight = filled(0, dtype="float16")
    for _ in range(4):  # in float16 alone 1 - 2**-12 is 1
        kv.pushpull("x", filled(2**-12, dtype="float16"), out=weight)
    np.testing.assert_array_equal(weight.asnumpy(), np.float16(1 - size * 2**-10))


def test_an_optimizer_that_draws_noise_keeps_ranks_equal(kv, rank, several):
    mx.random.seed(rank)
    kv.set_optimizer(mx.optimizer.SGLD(learning_rate=0.1))
    kv.init("x", filled(0))
    weight = filled(0)
    for _ in range(3):
        kv.pushpull("x", filled(1), out=weight)
    everyone = hvd.allgather_object(weight.asnumpy().tobytes())
    assert len(set(everyone)) == 1
