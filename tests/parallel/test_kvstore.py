"""The methods of the kvstore dist_sync_mpi, with MXNet's signatures and those of KVStoreBase."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import nd
from trained import assert_equal_on_all_ranks

import hvdlite as hvd

SHAPE = (2, 3)
KEYS = (3, "weight")  # keys of Trainer are ints, keys of Module are strings
NAMES = ("dist_sync_mpi", "DIST_SYNC_MPI", "horovod")


@pytest.fixture
def kv():
    return mx.kv.create("dist_sync_mpi")


def filled(value, shape=SHAPE, context=None, dtype="float32"):
    return nd.full(shape, value, ctx=context, dtype=dtype)


def both_contexts(value):
    return [filled(value, context=mx.cpu(i)) for i in (0, 1)]


def sum_of_ranks(size: int) -> int:
    """Return the sum if each rank pushes its rank plus one."""
    return size * (size + 1) // 2


def assert_all(arrays, value) -> None:
    for array in arrays if isinstance(arrays, list) else [arrays]:
        np.testing.assert_array_equal(array.asnumpy(), np.full(array.shape, value))


@pytest.mark.parametrize("name", NAMES)
def test_a_kvstore_knows_its_rank_and_is_separate_from_other_stores(name, rank, size):
    kv, second = mx.kv.create(name), mx.kv.create(name)
    assert kv.type == name.lower()
    assert (kv.rank, kv.num_workers, kv.local_rank) == (rank, size, hvd.local_rank())
    assert isinstance(kv, (mx.kv.KVStore, mx.kv.KVStoreBase))
    assert kv.is_capable("optimizer") and kv.is_capable("Optimizer")
    a, b = filled(1), filled(10)
    kv.pushpull("x", a)
    second.pushpull("x", b)
    assert_all(a, size)
    assert_all(b, 10 * size)
    kv._barrier()
    with pytest.raises(NotImplementedError, match="has no servers that could get a command"):
        kv._send_command_to_servers(0, "x")


def test_the_number_1_and_the_string_1_are_different_kvstore_keys(kv, size):
    """Each key has a separate residual of the compression."""
    kv.set_gradient_compression({"type": "2bit", "threshold": 1.0})
    for key in (1, "1"):
        a = filled(0.6)
        kv.pushpull(key, a)
        assert_all(a, 0)


# ---- pushpull ----


@pytest.mark.parametrize("key", KEYS)
def test_pushpull_into_out_leaves_the_value_unchanged(kv, key, rank, size):
    a, outs = filled(rank + 1), [filled(0), filled(0)]
    kv.pushpull(key, a, outs, 0)
    assert_all(outs, sum_of_ranks(size))
    kv.pushpull(key=key, ins=a, outs=outs[0], priority=0)  # names in MXNet's proposal of pushpull
    assert_all(outs[0], sum_of_ranks(size))
    assert_all(a, rank + 1)
    kv.pushpull(key, a, out=a)
    assert_all(a, sum_of_ranks(size))


def test_pushpull_sums_over_contexts_and_lists_of_keys(kv, rank, size):
    values = both_contexts(rank + 1)
    kv.pushpull("x", values)
    assert [v.context for v in values] == [mx.cpu(0), mx.cpu(1)]
    assert_all(values, 2 * sum_of_ranks(size))
    values, outs = both_contexts(rank + 1), both_contexts(0)
    kv.pushpull("x", values, out=outs[::-1])
    assert_all(values, rank + 1)
    assert_all(outs, 2 * sum_of_ranks(size))
    for keys in ([3, 5, 7], ["a", "b", "c"]):
        values, outs = [filled(i * (rank + 1)) for i in range(3)], [both_contexts(0) for _ in keys]
        kv.pushpull(keys, values)
        kv.pushpull(keys, [both_contexts(i * (rank + 1)) for i in range(3)], out=outs)
        for i, (value, arrays) in enumerate(zip(values, outs)):
            assert_all(value, i * sum_of_ranks(size))
            assert_all(arrays, 2 * i * sum_of_ranks(size))


def test_pushpull_of_one_key_may_be_repeated_without_waiting(kv, rank, size):
    """A key may be twice in a list, change its shape, or follow a broadcast, as in Trainer."""
    out = filled(0)
    kv.pushpull(["x", "x"], [filled(1), filled(10)], out=[out, out])
    assert_all(out, 11 * size)
    arrays = [filled(i, shape=(1000 + i,)) for i in range(10)]
    for array in arrays:
        kv.pushpull("x", array)
    for i, array in enumerate(arrays):
        assert_all(array, i * size)
    for _ in range(5):
        weight, grad = filled(rank), filled(rank + 1)
        kv.broadcast(3, weight, [weight])
        kv.pushpull(3, grad)
        assert_all(weight, 0)
        assert_all(grad, sum_of_ranks(size))


def test_pushpull_sums_numpy_arrays(kv, rank, size):
    """Gluon passes mx.np arrays after npx.set_np()."""
    with mx.util.np_shape(), mx.util.np_array(True):
        values = [mx.np.full((), rank + 1, ctx=mx.cpu(i)) for i in (0, 1)]
        outs = [mx.np.zeros((), ctx=mx.cpu(i)) for i in (0, 1)]
        kv.pushpull("x", values, out=outs)
        kv.pushpull("x", values)
        for array in values + outs:
            assert isinstance(array, mx.np.ndarray)
            assert array.asnumpy() == 2 * sum_of_ranks(size)


def test_pushpull_sums_sparse_arrays(kv, rank, size):
    dense = np.zeros((size + 1, 2), "float32")
    dense[rank] = rank + 1
    a, out = nd.array(dense).tostype("row_sparse"), nd.zeros(dense.shape)
    kv.pushpull("x", a, out=out)
    kv.pushpull("x", a)
    expected = np.repeat(np.append(np.arange(size) + 1, 0)[:, None], 2, 1)
    np.testing.assert_array_equal(out.asnumpy(), expected)
    np.testing.assert_array_equal(a.asnumpy(), expected)
    assert a.indices.asnumpy().tolist() == list(range(size))


@pytest.mark.parametrize("key", KEYS)
def test_store_broadcast_writes_to_out_from_any_root(kv, key, rank, size):
    """Without root_rank, the root is rank 0. KVStoreBase adds the argument root_rank."""
    value, outs = filled(rank + 5), both_contexts(-1)
    kv.broadcast(key, value, out=outs)
    assert_all(outs, 5)
    assert_all(value, rank + 5)
    for root in {0, size - 1}:
        for where, named in (((root, -3), {}), ((), {"root_rank": root})):
            value = filled(rank + 5)
            kv.broadcast(key, value, *where, **named)
            assert_all(value, root + 5)


# ---- values that the store keeps: init, push, pull ----


@pytest.mark.parametrize("key", KEYS)
def test_a_kvstore_push_replaces_the_value_of_init(kv, key, rank, size):
    kv.init(key, filled(rank + 7))
    out = filled(0)
    kv.pull(key, out=out)
    assert_all(out, 7)
    for step in (1, 2):  # each push replaces the value by the sum
        pushed = filled(step * (rank + 1))
        kv.push(key, pushed)
        kv.pull(key, out=out)
        assert_all(out, step * sum_of_ranks(size))
        assert_all(pushed, step * (rank + 1))
    outs = [filled(0) for _ in range(10)]
    for i, out in enumerate(outs):  # several pulls without a wait in between
        kv.push(key, filled(i))
        kv.pull(key, out=out)
    for i, out in enumerate(outs):
        assert_all(out, i * size)


@pytest.mark.parametrize("stype", ["row_sparse", "default"])
@pytest.mark.parametrize("ids", [[0, 2], [2, 2], [3, 0, 3], []], ids=str)
def test_row_sparse_pull_gives_only_the_given_rows(kv, stype, ids, rank):
    value = (nd.arange(12).reshape((4, 3)) + 1) * (rank + 1)
    kv.init("x", value.tostype(stype))
    out, dense = nd.zeros((4, 3)).tostype("row_sparse"), nd.zeros((4, 3))
    # MXNet makes empty arrays only with np_shape
    with mx.util.np_shape(not ids or mx.util.is_np_shape()):
        row_ids = nd.array(np.array(ids, "int64"), dtype="int64")
    kv.row_sparse_pull("x", out=out, row_ids=row_ids)
    expected = np.zeros((4, 3))
    expected[ids] = np.arange(1, 13).reshape(4, 3)[ids]
    np.testing.assert_array_equal(out.asnumpy(), expected)
    kv.pull("x", out=[dense, out])
    for whole in (dense, out):
        np.testing.assert_array_equal(whole.asnumpy(), np.arange(1, 13).reshape(4, 3))


def test_row_sparse_pull_takes_lists_of_keys_and_rows(kv):
    value = nd.arange(8).reshape((4, 2)) + 1
    kv.init(["a", "b"], [value.tostype("row_sparse"), (2 * value).tostype("row_sparse")])
    first, second = nd.array([0, 1], dtype="int64"), nd.array([3], dtype="int64")
    both = [nd.zeros((4, 2)).tostype("row_sparse") for _ in range(2)]
    for keys, row_ids, rows in (
        ("a", first, [[0, 1], [0, 1]]),  # one array of rows for all outputs
        ("a", [first, second], [[0, 1], [3]]),  # one array of rows for each output
        # one output and one array of rows for each key
        (["a", "b"], [second, first], [[3], [0, 1]]),
        (["a", "b"], second, [[3], [3]]),
    ):
        kv.row_sparse_pull(keys, out=both, row_ids=row_ids)
        assert [np.flatnonzero(a.asnumpy().any(axis=1)).tolist() for a in both] == rows
    assert both[1].asnumpy()[3].tolist() == [14, 16]


# ---- optimizers on the store ----


@pytest.mark.parametrize("key", KEYS)
def test_an_optimizer_updates_the_value_that_a_kvstore_keeps(kv, key, rank, size):
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


def test_a_kvstore_push_calls_the_users_updater(kv, size):
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


def test_float16_weights_are_updated_in_float32_masters(kv, size):
    kv.set_optimizer(mx.optimizer.SGD(learning_rate=1, multi_precision=True))
    kv.init("x", filled(1, dtype="float16"))
    weight = filled(0, dtype="float16")
    for _ in range(4):  # 1 - 2**-12 is rounded to 1 in float16
        kv.pushpull("x", filled(2**-12, dtype="float16"), out=weight)
    np.testing.assert_array_equal(weight.asnumpy(), np.float16(1 - size * 2**-10))


def test_an_optimizer_that_draws_noise_keeps_ranks_equal(kv, rank):
    mx.random.seed(rank)
    kv.set_optimizer(mx.optimizer.SGLD(learning_rate=0.1))
    kv.init("x", filled(0))
    weight = filled(0)
    for _ in range(3):
        kv.pushpull("x", filled(1), out=weight)
    assert_equal_on_all_ranks({"x": weight.asnumpy()})


# ---- wrong calls ----


def wrong_calls(kv):
    a, other = filled(1), filled(1, (3, 2))
    csr = nd.ones((2, 2)).tostype("csr")
    return {
        "unknown capability 'magic'": lambda: kv.is_capable("magic"),
        "key 2.5: expected an int or a string": lambda: kv.pushpull(2.5, a),
        "key 'x': expected an NDArray or a list of them, got list": lambda: kv.push("x", [[a]]),
        "key 'x': expected an NDArray or a list of them, got NoneType": lambda: kv.pull("x"),
        "keys ['a', 'b']: expected a list of 2 values, got 1": lambda: kv.init(["a", "b"], [a]),
        "keys ['a', 'b']: expected a list of 2 values, got NDArray": lambda: kv.init(["a", "b"], a),
        "and at least one array": lambda: kv.push("x", []),
        "key 'x' has storage type csr": lambda: kv.pushpull("x", csr),
        "key 'y' has no value in the kvstore: call init": lambda: kv.pull("y", out=a),
        "key 'x' has shape (2, 3), got (3, 2)": lambda: kv.push("x", other),
        "to get all rows, call pull": lambda: kv.row_sparse_pull("x", out=a, row_ids=nd.array([0])),
        "key 'x': row_ids from 1 to 2: expected 0 to 1": lambda: kv.row_sparse_pull(
            "x", out=a.tostype("row_sparse"), row_ids=nd.array([2, 1])
        ),
        "type 'zip': expected one of none, fp16": lambda: kv.set_gradient_compression(
            {"type": "zip"}
        ),
        "the kvstore has no optimizer states": lambda: kv.save_optimizer_states("x"),
        "call set_optimizer first": lambda: kv.load_optimizer_states("x"),
        "expected a plain MXNet optimizer, got str": lambda: kv.set_optimizer("sgd"),
        "averages by itself: use it with kvstore=None": lambda: kv.set_optimizer(
            hvd.DistributedOptimizer(mx.optimizer.SGD())
        ),
    }


def test_a_kvstore_works_after_a_wrong_call_has_raised_an_error(kv, size):
    """The error is an MXNetError, as in MXNet's stores, and a ValueError, as in all of hvdlite."""
    kv.init("x", filled(1))
    for text, call in wrong_calls(kv).items():
        with pytest.raises(ValueError) as error:
            call()
        assert text in str(error.value)
        assert isinstance(error.value, mx.MXNetError)
    a = filled(1)
    kv.pushpull("x", a)
    assert_all(a, size)
    # MXNet's servers would return the sum; hvdlite would need a copy in each step.
    with pytest.raises(ValueError, match="a pushpull without an optimizer keeps no value"):
        kv.pull("x", out=filled(0))


def test_save_optimizer_states_refuses_a_folder_and_leaves_no_file(kv, tmp_path):
    kv.set_optimizer(mx.optimizer.SGD())
    folder = tmp_path / "states"
    folder.mkdir()
    with pytest.raises(IsADirectoryError):
        kv.save_optimizer_states(str(folder))
    assert list(tmp_path.iterdir()) == [folder]


def test_a_new_learning_rate_applies_to_the_next_kvstore_push(kv, size):
    optimizer = mx.optimizer.SGD(learning_rate=1)
    kv.set_optimizer(optimizer)
    kv.init("x", filled(0))
    weight = filled(0)
    for lr in (1, 0.25):
        optimizer.set_learning_rate(lr)
        kv.pushpull("x", filled(1), out=weight)
    assert_all(weight, -1.25 * size)
