"""The kvstore dist_sync_mpi, method by method: MXNet's conventions and those of the proposal."""

import mxnet as mx
import numpy as np
import pytest
from kvstores import KEYS, assert_all, both_contexts, filled, sum_of_ranks
from mxnet import nd

import hvdlite as hvd

# ---- who and where ----


@pytest.mark.parametrize("name", ["dist_sync_mpi", "horovod"])
def test_who_it_is(name, rank, size):
    kv = mx.kv.create(name)
    assert kv.type == name
    assert (kv.rank, kv.num_workers, kv.local_rank) == (rank, size, hvd.local_rank())
    assert isinstance(kv, (mx.kv.KVStore, mx.kv.KVStoreBase))
    assert kv.is_capable("optimizer")
    assert kv.is_capable("Optimizer")
    with pytest.raises(ValueError, match="unknown capability 'magic'"):
        kv.is_capable("magic")


@pytest.mark.parametrize("name", ["dist_sync_mpi", "DIST_SYNC_MPI", "horovod"])
def test_two_stores_do_not_meet(name, rank, size):
    first, second = mx.kv.create(name), mx.kv.create(name)
    a, b = filled(1), filled(10)
    first.pushpull("x", a)
    second.pushpull("x", b)
    assert_all(a, size)
    assert_all(b, 10 * size)


def test_a_number_and_its_text_are_two_keys(kv, size):
    """Neither gets what the codec has left out of the other."""
    kv.set_gradient_compression({"type": "2bit", "threshold": 1.0})
    for key in (1, "1"):
        a = filled(0.6)
        kv.pushpull(key, a)
        assert_all(a, 0)


def test_states_that_can_not_be_written_leave_no_file(kv, tmp_path):
    kv.set_optimizer(mx.optimizer.SGD())
    folder = tmp_path / "states"
    folder.mkdir()
    with pytest.raises(IsADirectoryError):
        kv.save_optimizer_states(str(folder))
    assert list(tmp_path.iterdir()) == [folder]


def test_barrier(kv):
    for _ in range(3):
        kv._barrier()


def test_there_are_no_servers_to_command(kv):
    with pytest.raises(NotImplementedError, match="has no servers to command"):
        kv._send_command_to_servers(0, "x")


# ---- pushpull ----


@pytest.mark.parametrize("key", KEYS)
def test_pushpull_into_out_leaves_the_value_alone(kv, key, rank, size):
    a, outs = filled(rank + 1), [filled(0), filled(0)]
    kv.pushpull(key, a, outs, 0)
    for out in outs:
        assert_all(out, sum_of_ranks(size))
    kv.pushpull(key=key, ins=a, outs=outs[0], priority=0)  # the names of the proposal
    assert_all(outs[0], sum_of_ranks(size))
    assert_all(a, rank + 1)
    kv.pushpull(key, a, out=a)
    assert_all(a, sum_of_ranks(size))


def test_pushpull_of_several_contexts(kv, rank, size):
    values = both_contexts(rank + 1)
    kv.pushpull("x", values)
    assert [v.context for v in values] == [mx.cpu(0), mx.cpu(1)]
    for value in values:
        assert_all(value, 2 * sum_of_ranks(size))
    values, outs = both_contexts(rank + 1), both_contexts(0)
    kv.pushpull("x", values, out=outs[::-1])
    for value, out in zip(values, outs):
        assert_all(value, rank + 1)
        assert_all(out, 2 * sum_of_ranks(size))


@pytest.mark.parametrize("keys", [[3, 5, 7], ["a", "b", "c"]], ids=["int", "str"])
def test_pushpull_of_lists(kv, keys, rank, size):
    """Of arrays, and of lists that have one on each context."""
    values, outs = [filled(i * (rank + 1)) for i in range(3)], [both_contexts(0) for _ in keys]
    kv.pushpull(keys, values)
    kv.pushpull(keys, [both_contexts(i * (rank + 1)) for i in range(3)], out=outs)
    for i, (value, arrays) in enumerate(zip(values, outs)):
        assert_all(value, i * sum_of_ranks(size))
        for array in arrays:
            assert_all(array, 2 * i * sum_of_ranks(size))


def test_pushpull_of_one_key_several_times_in_a_list(kv, size):
    out = filled(0)
    kv.pushpull(["x", "x"], [filled(1), filled(10)], out=[out, out])
    assert_all(out, 11 * size)


def test_different_arrays_of_one_key_without_waiting(kv, size):
    arrays = [filled(i, shape=(1000 + i,)) for i in range(10)]
    for array in arrays:
        kv.pushpull("x", array)
    for i, array in enumerate(arrays):
        assert_all(array, i * size)


def test_broadcast_and_pushpull_of_one_key_at_the_same_time(kv, rank, size):
    """Trainer's first step; MXNet's own store mixes the two up."""
    for _ in range(5):
        weight, grad = filled(rank), filled(rank + 1)
        kv.broadcast(3, weight, [weight])
        kv.pushpull(3, grad)
        assert_all(weight, 0)
        assert_all(grad, sum_of_ranks(size))


def test_pushpull_of_numpy_arrays(kv, rank, size):
    """mx.np, as Gluon has them after npx.set_np()."""
    with mx.util.np_shape(), mx.util.np_array(True):
        values = [mx.np.full((), rank + 1, ctx=mx.cpu(i)) for i in (0, 1)]
        outs = [mx.np.zeros((), ctx=mx.cpu(i)) for i in (0, 1)]
        kv.pushpull("x", values, out=outs)
        kv.pushpull("x", values)
        for array in values + outs:
            assert isinstance(array, mx.np.ndarray)
            assert array.asnumpy() == 2 * sum_of_ranks(size)


def test_pushpull_of_sparse_arrays(kv, rank, size):
    dense = np.zeros((size + 1, 2), "float32")
    dense[rank] = rank + 1
    a, out = nd.array(dense).tostype("row_sparse"), nd.zeros(dense.shape)
    kv.pushpull("x", a, out=out)
    kv.pushpull("x", a)
    expected = np.repeat(np.append(np.arange(size) + 1, 0)[:, None], 2, 1)
    np.testing.assert_array_equal(out.asnumpy(), expected)
    np.testing.assert_array_equal(a.asnumpy(), expected)
    assert a.indices.asnumpy().tolist() == list(range(size))


# ---- broadcast ----


@pytest.mark.parametrize("key", KEYS)
def test_broadcast_into_out(kv, key, rank):
    value, outs = filled(rank + 5), both_contexts(-1)
    kv.broadcast(key, value, out=outs)
    for out in outs:
        assert_all(out, 5)
    assert_all(value, rank + 5)


@pytest.mark.parametrize("key", KEYS)
def test_broadcast_from_a_root(kv, key, rank, size):
    """The proposal's broadcast(key, value, root_rank, priority)."""
    for root in {0, size - 1}:
        value = filled(rank + 5)
        kv.broadcast(key, value, root, -3)
        assert_all(value, root + 5)
        value = filled(rank + 5)
        kv.broadcast(key, value, root_rank=root)
        assert_all(value, root + 5)


# ---- wrong calls: an error at once, and the store goes on ----


def wrong_calls(kv):
    a, other = filled(1), filled(1, (3, 2))
    csr = nd.ones((2, 2)).tostype("csr")
    return {
        "key 2.5: expected an int or a string": lambda: kv.pushpull(2.5, a),
        "key 'x': expected an NDArray or a list of them, got list": lambda: kv.push("x", [[a]]),
        "key 'x': expected an NDArray or a list of them, got NoneType": lambda: kv.pull("x"),
        "keys ['a', 'b']: expected a list of 2 values, got 1": lambda: kv.init(["a", "b"], [a]),
        "keys ['a', 'b']: expected a list of 2 values, got NDArray": lambda: kv.init(["a", "b"], a),
        "and at least one array": lambda: kv.push("x", []),
        "key 'x' has storage type csr": lambda: kv.pushpull("x", csr),
        "key 'y' has no value in the kvstore: call init": lambda: kv.pull("y", out=a),
        "key 'x' has shape (2, 3), got (3, 2)": lambda: kv.push("x", other),
        "to get all rows use pull": lambda: kv.row_sparse_pull("x", out=a, row_ids=nd.array([0])),
        "key 'x': row_ids from 1 to 2: expected 0 to 1": lambda: kv.row_sparse_pull(
            "x", out=a.tostype("row_sparse"), row_ids=nd.array([2, 1])
        ),
        "type 'zip': expected one of none, fp16": lambda: kv.set_gradient_compression(
            {"type": "zip"}
        ),
        "the kvstore has no optimizer whose states": lambda: kv.save_optimizer_states("x"),
        "call set_optimizer first": lambda: kv.load_optimizer_states("x"),
        "expected a plain MXNet optimizer, got str": lambda: kv.set_optimizer("sgd"),
        "averages by itself: use it with kvstore=None": lambda: kv.set_optimizer(
            hvd.DistributedOptimizer(mx.optimizer.SGD())
        ),
    }


def test_wrong_calls(kv, size):
    """An MXNetError, as in MXNet's own stores, and a ValueError, as in the rest of hvdlite."""
    kv.init("x", filled(1))
    for text, call in wrong_calls(kv).items():
        with pytest.raises(ValueError) as error:
            call()
        assert text in str(error.value)
        assert isinstance(error.value, mx.MXNetError)
    a = filled(1)
    kv.pushpull("x", a)
    assert_all(a, size)


def test_after_pushpull_without_optimizer_nothing_is_kept(kv):
    """MXNet's servers would give the sum back; here it would cost a copy at every step."""
    kv.init("x", filled(1))
    kv.pushpull("x", filled(1))
    with pytest.raises(ValueError, match="after a pushpull without optimizer only push and pull"):
        kv.pull("x", out=filled(0))
