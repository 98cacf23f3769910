"""Collectives on TensorFlow's tensors: eagerly, inside tf.function, in a session; and gradients."""

import numpy as np
import pytest
import tensorflow as tf
from finite_differences import check_gradient, every_case
from threads import in_threads, outcomes

import hvdlite.tensorflow as hvd
from hvdlite.tensorflow.differentiable import start_allreduce

DTYPES = ["float16", "float32", "float64", "uint8", "int8", "int32", "int64"]


def eagerly(function, *arrays):
    return function(*map(tf.constant, arrays))


def in_function(function, *arrays):
    return tf.function(function)(*map(tf.constant, arrays))


def in_session(function, *arrays):
    with tf.Graph().as_default():
        inputs = [tf.compat.v1.placeholder(a.dtype, a.shape) for a in arrays]
        outputs = function(*inputs)
        with tf.compat.v1.Session() as session:
            return session.run(outputs, dict(zip(inputs, arrays)))


everywhere = pytest.mark.parametrize("call", [eagerly, in_function, in_session])


def read(value) -> np.ndarray:
    return value if isinstance(value, np.ndarray) else np.asarray(value)


@everywhere
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (17,), (17, 3), (2, 0)])
def test_allreduce(call, dtype, shape, rank, size):
    x = np.arange(np.prod(shape), dtype=int).reshape(shape) % 7 + rank
    total = np.arange(np.prod(shape), dtype=int).reshape(shape) % 7 * size + sum(range(size))
    result = read(call(lambda t: hvd.allreduce(t, op=hvd.Sum), x.astype(dtype)))
    assert result.dtype == dtype and result.shape == shape
    np.testing.assert_array_equal(result, total.astype(dtype))


@everywhere
def test_operations_and_scales(call, rank, size):
    x = np.array([rank + 1.0, -rank, 2.0], np.float32)
    every = np.array([[r + 1.0, -r, 2.0] for r in range(size)])
    ops = {hvd.Min: every.min(0), hvd.Max: every.max(0), hvd.Product: every.prod(0)}
    for op, expected in {**ops, hvd.Average: every.mean(0)}.items():
        np.testing.assert_allclose(
            read(call(lambda t, op=op: hvd.allreduce(t, op=op), x)), expected
        )
    scaled = call(
        lambda t: hvd.allreduce(t, None, "", "", hvd.Compression.none, hvd.Sum, 2, 0.25), x
    )
    np.testing.assert_allclose(read(scaled), every.sum(0) / 2)


@everywhere
def test_compression(call, size):
    x = np.linspace(-1, 1, 40, dtype=np.float32)
    result = read(call(lambda t: hvd.allreduce(t, compression=hvd.Compression.fp16), x))
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, x, atol=1e-3)


@everywhere
def test_grouped_allreduce(call, rank, size):
    results = call(lambda x, y: hvd.grouped_allreduce([x, y], op=hvd.Sum), *(
        np.full(3, rank, np.float32), np.full((2, 2), 1, np.int64)
    ))  # fmt: skip
    assert read(results[0]).tolist() == [sum(range(size))] * 3
    assert read(results[1]).tolist() == [[size] * 2] * 2


@everywhere
@pytest.mark.parametrize("dtype", [*DTYPES, "bool"])
def test_allgather_of_uneven_parts(call, dtype, rank, size):
    x = np.full((rank + 1, 2), rank).astype(dtype)
    expected = np.concatenate([np.full((r + 1, 2), r) for r in range(size)]).astype(dtype)
    result = read(call(hvd.allgather, x))
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, expected)


@everywhere
def test_grouped_allgather(call, rank, size):
    x, y = np.array([rank]), np.full((1, 2), rank, np.float32)
    rows, pairs = call(lambda x, y: hvd.grouped_allgather([x, y]), x, y)
    assert read(rows).tolist() == list(range(size))
    assert read(pairs).tolist() == [[r, r] for r in range(size)]


@everywhere
@pytest.mark.parametrize("dtype", [*DTYPES, "bool"])
def test_broadcast_from_each_root(call, dtype, rank, size):
    for root in range(size):
        x = np.full((2, 3), rank).astype(dtype)
        result = read(call(lambda t, root=root: hvd.broadcast(t, root), x))
        np.testing.assert_array_equal(result, np.full((2, 3), root).astype(dtype))


@everywhere
def test_alltoall(call, rank, size):
    x = np.arange(2 * size) + 100 * rank
    expected = [100 * r + 2 * rank + i for r in range(size) for i in range(2)]
    assert read(call(hvd.alltoall, x)).tolist() == expected
    splits = np.arange(size, dtype=np.int32)  # r rows to rank r
    rows, received = call(hvd.alltoall, np.arange(splits.sum()) + 100 * rank, splits)
    first = rank * (rank - 1) // 2
    assert read(rows).tolist() == [100 * r + first + i for r in range(size) for i in range(rank)]
    assert read(received).tolist() == [rank] * size and read(received).dtype == np.int32


@everywhere
def test_alltoall_where_ranks_have_different_rows(call, rank, size):
    """Its gradient goes back as many rows as came, not as many as were sent."""

    def exchange(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(hvd.alltoall(x) * (rank + 1))
        return tape.gradient(loss, x)

    x = np.arange(size * (rank + 1), dtype=np.float32)
    assert read(call(exchange, x)).tolist() == np.repeat(np.arange(size) + 1, rank + 1).tolist()


@everywhere
@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64"])
def test_unsigned_rows_are_moved(call, dtype, rank, size):
    top = np.iinfo(dtype).max
    x = np.full(size, top - rank, dtype)
    moved = call(lambda t: [hvd.allgather(t), hvd.broadcast(t, size - 1), hvd.alltoall(t)], x)
    of_ranks = [top - r for r in range(size)]
    expected = np.repeat(np.array(of_ranks, dtype), size), [of_ranks[-1]] * size, of_ranks
    for result, each in zip(map(read, moved), expected):
        assert result.dtype == dtype and result.tolist() == list(each)


@everywhere
def test_reducescatter_of_a_scalar(call):
    with pytest.raises(ValueError, match="is 0-d: a reducescatter needs rows"):
        call(hvd.reducescatter, np.float32(1))


@everywhere
def test_reducescatter(call, rank, size):
    x = np.arange(size + 1.0)[:, None] * np.ones(2)
    own = np.array_split(x * size, size)[rank]
    result = read(call(lambda t: hvd.reducescatter(t, op=hvd.Sum), x))
    np.testing.assert_array_equal(result, own)
    grouped = call(lambda t: hvd.grouped_reducescatter([t, t], op=hvd.Average), x)
    np.testing.assert_array_equal(read(grouped[1]), own / size)


@everywhere
def test_rows_of_all_ranks(call, rank, size):
    """IndexedSlices become those of all ranks."""

    def reduce_(values, indices):
        slices = tf.IndexedSlices(values, indices, tf.constant([9, 2]))
        result = hvd.allreduce(slices)
        return result.values, result.indices

    x = np.full((rank + 1, 2), rank, np.float32)
    values, indices = call(reduce_, x, np.full(rank + 1, rank))
    rows = [r for r in range(size) for _ in range(r + 1)]
    assert read(indices).tolist() == rows
    np.testing.assert_allclose(read(values), np.array([[r / size] * 2 for r in rows]))


@everywhere
def test_where_a_process_is(call, rank, size):
    def ask(_):
        included = hvd.process_set_included_op()
        return [hvd.rank_op(), hvd.size_op(), hvd.local_rank_op(), hvd.local_size_op(), included]

    answers = [int(read(a)) for a in call(ask, np.zeros(1))]
    assert answers == [rank, size, hvd.local_rank(), hvd.local_size(), 1]


def test_ranks_come_in_different_orders(rank, size):
    """Names pair them: a graph starts what it has, then waits."""

    @tf.function
    def program(x):
        results = {}
        for name in ("abc", "cab")[rank % 2]:
            results[name] = hvd.allreduce(x * ord(name), op=hvd.Sum, name=name)
        return [results[name] for name in "abc"]

    got = [float(each) for each in program(tf.constant(1.0))]
    assert got == [size * ord(name) for name in "abc"]


def test_many_at_once_in_a_session(rank, size):
    """More than TensorFlow has threads on this host."""
    with tf.Graph().as_default():
        parts = [hvd.allreduce(tf.fill([10], float(i + rank)), op=hvd.Sum) for i in range(30)]
        with tf.compat.v1.Session() as session:
            results = session.run(parts if rank % 2 else parts[::-1])
    expected = [i * size + sum(range(size)) for i in range(30)]
    assert [r[0] for r in (results if rank % 2 else results[::-1])] == expected


def test_a_program_that_is_traced_again(size):
    """On one rank more often than on others, too."""

    @tf.function
    def program(x):
        return hvd.allreduce(x, op=hvd.Sum) + hvd.allreduce(2 * x, op=hvd.Sum)

    for length in [3, 3, 4, 3]:
        np.testing.assert_array_equal(program(tf.ones(length)), np.full(length, 3 * size))


def test_process_sets(rank, size):
    if size < 3:
        pytest.skip("needs three ranks")
    some = hvd.add_process_set([0, 2])
    if rank in (0, 2):
        result = hvd.allreduce(tf.constant(float(rank)), op=hvd.Sum, process_set=some)
        assert float(result) == 2
        assert hvd.allgather(tf.constant([rank]), process_set=some).numpy().tolist() == [0, 2]
        assert int(hvd.size_op(some.process_set_id)) == 2
    assert int(hvd.process_set_included_op(some.process_set_id)) == (rank in (0, 2))
    hvd.remove_process_set(some)


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize("call", [eagerly, in_function])
def test_ranks_that_disagree_all_get_the_error(call, rank):
    x = np.ones(3 + (rank == 0), np.float32)
    errors = (hvd.HvdliteError, tf.errors.OpError)
    with pytest.raises(errors, match="'allreduce.w': ranks disagree on the shape"):
        call(lambda t: hvd.allreduce(t, name="w"), x)
    assert float(hvd.allreduce(tf.constant(2.0), name="w")) == 2


@every_case
def test_gradients_are_those_of_finite_differences(verb, options, rank, size):
    def differentiate(verb, values, options, weight):
        x = tf.constant(values)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = getattr(hvd, verb)([x, 2 * x] if verb.startswith("grouped") else x, **options)
            outs = y if isinstance(y, list) else y[:1] if isinstance(y, tuple) else [y]
            loss = sum(tf.reduce_sum(out * weight(out.shape)) for out in outs)
        return float(loss), tape.gradient(loss, x).numpy()

    check_gradient(differentiate, verb, options, rank, size)


def test_min_has_no_gradient():
    x = tf.ones(2)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = hvd.allreduce(x, op=hvd.Min)
    with pytest.raises(ValueError, match="op Min has no gradient: expected Sum or Average"):
        tape.gradient(y, x)


def test_gradients_in_a_function(rank, size):
    x = tf.constant(np.arange(6.0).reshape(3, 2) + rank)
    weight = tf.constant(rank + 1.0, tf.float64)
    total, mean = sum(range(1, size + 1)), sum(range(1, size + 1)) / size
    splits = tf.constant([3] + [0] * (size - 1))

    def gradient_of(collective):
        def compute(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_sum(collective(x)) * weight
            return tape.gradient(loss, x)

        return tf.function(compute)(x).numpy()

    def check(collective, expected):
        np.testing.assert_allclose(gradient_of(collective), np.full((3, 2), expected))

    check(lambda x: hvd.allreduce(x, op=hvd.Sum), total)
    check(lambda x: hvd.allreduce(x), mean)
    check(lambda x: hvd.grouped_allreduce([x, x], op=hvd.Sum)[1], total)
    check(hvd.allgather, mean)
    check(lambda x: hvd.broadcast(x, size - 1), mean if rank == size - 1 else 0)
    check(lambda x: hvd.alltoall(x, splits)[0], 1)
    rows = np.repeat(np.arange(1.0, size + 1), [len(a) for a in np.array_split(range(3), size)])
    got = gradient_of(lambda x: hvd.reducescatter(x, op=hvd.Average))
    np.testing.assert_allclose(got, rows[:, None] * np.ones(2))


def test_a_session_that_asks_for_gradients_alone(rank, size):
    """All ranks take part in a broadcast's gradient, also those to which it gives zeros."""
    with tf.Graph().as_default():
        x = tf.constant([rank + 1.0, 2.0])
        y = [hvd.broadcast(x, root) for root in range(size)]
        z = [hvd.allgather(x), hvd.alltoall(tf.tile(x, [size]))]
        grads = [tf.gradients(each, x, tf.ones_like(each))[0] for each in [*y, *z]]
        with tf.compat.v1.Session() as session:
            found = [session.run(grad).tolist() for grad in grads]
    own = [[float(rank == root)] * 2 for root in range(size)]
    assert found == [*own, [1, 1], [size, size]]


def test_objects_and_join(rank, size):
    assert hvd.broadcast_object({"of": rank}, size - 1) == {"of": size - 1}
    assert hvd.broadcast_object_fn(root_rank=0)(rank) == 0
    assert hvd.allgather_object(rank) == list(range(size))
    assert int(hvd.join()) in range(size)


@pytest.mark.parametrize("traced", [False, True])
def test_averages_are_over_the_ranks_that_have_not_joined(traced, rank, size):
    def average(x):
        return hvd.allreduce(x, name=f"left{traced}")

    if rank > 0:
        value = tf.constant([float(rank)])
        assert (tf.function(average) if traced else average)(value).numpy() == size / 2
    hvd.join()


def test_wrong_arguments():
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([3, 2]))
    with pytest.raises(NotImplementedError, match="is IndexedSlices: expected op Sum or Average"):
        hvd.allreduce(slices, op=hvd.Max)
    if hvd.rank() == 0:  # raises before anything is sent: the others need not come
        with pytest.raises(NotImplementedError, match="is IndexedSlices"):
            hvd.grouped_allreduce([tf.ones(1), slices], op=hvd.Max)
    with pytest.raises(ValueError, match="give op or average, not both"):
        hvd.allreduce(tf.ones(1), average=True, op=hvd.Sum)
    with pytest.raises(ValueError, match="dtype complex64 is not supported"):
        hvd.allreduce(tf.ones(1, tf.complex64))


@everywhere
def test_calls_from_several_threads(call, rank, size):
    """Each names its tensors; TensorFlow's own threads start them and wait for them."""

    def work(thread: int) -> None:
        def step(x):
            named = {"name": f"thread{thread}"}
            total = hvd.allreduce(x, op=hvd.Sum, **named)
            return total, hvd.allgather(x, **named), hvd.alltoall(total, **named)

        for _ in range(3):
            total, rows, parts = map(read, call(step, np.full((size, 2), thread, np.float32)))
            assert total.tolist() == parts.tolist() == [[thread * size] * 2] * size
            assert rows.tolist() == [[thread] * 2] * size * size

    in_threads([lambda thread=thread: work(thread) for thread in range(4)])


def test_threads_that_share_handles_get_the_same_results(size):
    """A graph's node has such a handle."""
    names, arrays = ["a", "b", "c"], [np.ones(3), np.ones(2, int), np.zeros(0)]
    everyone, scales = hvd.global_process_set, (1.0, 1.0)
    for _ in range(100):
        handle = start_allreduce(names, arrays, hvd.Sum, scales, everyone)
        (results,) = outcomes([handle])
        assert [each.tolist() for each in results] == [[size] * 3, [size] * 2, []]
