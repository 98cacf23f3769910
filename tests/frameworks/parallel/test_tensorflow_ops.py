"""Collectives on TensorFlow tensors, eagerly, in tf.function and in sessions, with gradients."""

import sys

import numpy as np
import pytest
import tensorflow as tf
from libraries import Eager, InFunction, InSession
from threads import in_threads, outcomes

import hvdlite.tensorflow as hvd
from hvdlite import failure_of
from hvdlite.tensorflow import exchange
from hvdlite.tensorflow.differentiable import start_allreduce

everywhere = pytest.mark.parametrize("how", [Eager.how, InFunction.how, InSession.how])


@everywhere
def test_allreduce_of_indexed_slices_joins_the_rows_of_all_ranks(how, rank, size):
    """allreduce of IndexedSlices gathers the values and indices of all ranks."""

    def reduce_(values, indices):
        slices = tf.IndexedSlices(values, indices, tf.constant([9, 2]))
        result = hvd.allreduce(slices)
        return result.values, result.indices

    x = np.full((rank + 1, 2), rank, np.float32)
    values, indices = how(reduce_, [x, np.full(rank + 1, rank)])
    rows = [r for r in range(size) for _ in range(r + 1)]
    np.testing.assert_array_equal(indices, rows)
    np.testing.assert_allclose(values, np.array([[r / size] * 2 for r in rows]))


@everywhere
def test_tensors_of_bfloat16_with_and_without_dimensions_are_reduced(how, rank, size):
    for shape in ((), (3,)):
        own = np.full(shape, rank + 1, tf.bfloat16.as_numpy_dtype)
        total, given = how(lambda x: [hvd.allreduce(x, op=hvd.Sum), hvd.broadcast(x, 0)], [own])
        assert np.shape(total) == np.shape(given) == shape
        assert np.all(total == size * (size + 1) / 2) and np.all(given == 1)


@everywhere
def test_tensorflow_operations_return_rank_and_size(how, rank, size):
    def ask(_):
        included = hvd.process_set_included_op()
        return [hvd.rank_op(), hvd.size_op(), hvd.local_rank_op(), hvd.local_size_op(), included]

    answers = [int(a) for a in how(ask, [np.zeros(1)])]
    assert answers == [rank, size, hvd.local_rank(), hvd.local_size(), 1]


def test_ranks_may_run_collectives_of_a_graph_in_different_orders(rank, size):
    """Collectives pair by name: a graph starts all ready collectives before it waits for one."""

    @tf.function
    def program(x):
        results = {}
        for name in ("abc", "cab")[rank % 2]:
            results[name] = hvd.allreduce(x * ord(name), op=hvd.Sum, name=name)
        return [results[name] for name in "abc"]

    got = [float(each) for each in program(tf.constant(1.0))]
    assert got == [size * ord(name) for name in "abc"]


def test_many_concurrent_collectives_in_a_session_do_not_deadlock(rank, size):
    """TensorFlow has fewer threads than collectives; ranks start these in opposite orders."""
    with tf.Graph().as_default():
        parts = [hvd.allreduce(tf.fill([10], float(i + rank)), op=hvd.Sum) for i in range(30)]
        with tf.compat.v1.Session() as session:
            results = session.run(parts if rank % 2 else parts[::-1])
    expected = [i * size + sum(range(size)) for i in range(30)]
    assert [r[0] for r in (results if rank % 2 else results[::-1])] == expected


def test_a_function_that_is_traced_again_keeps_its_tensor_names(size):

    @tf.function
    def program(x):
        return hvd.allreduce(x, op=hvd.Sum) + hvd.allreduce(2 * x, op=hvd.Sum)

    for length in [3, 3, 4, 3]:
        np.testing.assert_array_equal(program(tf.ones(length)), np.full(length, 3 * size))


def test_process_set_included_op_tells_if_a_rank_is_in_the_set(rank, size, several):
    some = hvd.add_process_set([1])
    if rank == 1:
        assert int(hvd.size_op(some.process_set_id)) == 1
    assert int(hvd.process_set_included_op(some.process_set_id)) == (rank == 1)
    hvd.remove_process_set(some)


def test_a_tensorflow_session_may_fetch_only_gradients(rank, size):
    """All ranks take part in the gradient of a broadcast, also ranks whose gradient is zero."""
    with tf.Graph().as_default():
        x = tf.constant([rank + 1.0, 2.0])
        y = [hvd.broadcast(x, root) for root in range(size)]
        z = [hvd.allgather(x), hvd.alltoall(tf.tile(x, [size]))]
        grads = [tf.gradients(each, x, tf.ones_like(each))[0] for each in [*y, *z]]
        with tf.compat.v1.Session() as session:
            found = [session.run(grad).tolist() for grad in grads]
    own = [[float(rank == root)] * 2 for root in range(size)]
    assert found == [*own, [1, 1], [size, size]]


def test_broadcast_object_fn_returns_a_function_that_broadcasts(rank):
    assert hvd.broadcast_object_fn(root_rank=0)(rank) == 0


def test_wrong_arguments_of_tensorflow_collectives_are_refused():
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([3, 2]))
    with pytest.raises(NotImplementedError, match="is IndexedSlices: expected op Sum or Average"):
        hvd.allreduce(slices, op=hvd.Max)
    if hvd.rank() == 0:  # the call raises before it sends anything, so other ranks need no call
        with pytest.raises(NotImplementedError, match="is IndexedSlices"):
            hvd.grouped_allreduce([tf.ones(1), slices], op=hvd.Max)
    with pytest.raises(ValueError, match="dtype complex64 is not supported"):
        hvd.allreduce(tf.ones(1, tf.complex64))
    with pytest.raises(ValueError, match="root_rank is '0': expected a rank of the job"):
        # tracing the function raises the error
        tf.function(lambda x: hvd.reducescatter(hvd.broadcast(x, "0")))(tf.ones(2))


@everywhere
def test_threads_may_call_tensorflow_collectives_concurrently(how, rank, size):
    """Each thread uses its own tensor names; TensorFlow's threads start and await the calls."""

    def work(thread: int) -> None:
        def step(x):
            named = {"name": f"thread{thread}"}
            total = hvd.allreduce(x, op=hvd.Sum, **named)
            return total, hvd.allgather(x, **named), hvd.alltoall(total, **named)

        for _ in range(3):
            total, rows, parts = map(
                np.asarray, how(step, [np.full((size, 2), thread, np.float32)])
            )
            assert total.tolist() == parts.tolist() == [[thread * size] * 2] * size
            assert rows.tolist() == [[thread] * 2] * size * size

    in_threads([lambda thread=thread: work(thread) for thread in range(4)])


def test_threads_that_share_a_handle_of_a_graph_get_the_same_results(size):
    """A node of a graph keeps a handle, for which several threads may wait."""
    names, arrays = ["a", "b", "c"], [np.ones(3), np.ones(2, int), np.zeros(0)]
    everyone, scales = hvd.global_process_set, (1.0, 1.0)
    for _ in range(100):
        handle = start_allreduce(names, arrays, hvd.Sum, scales, everyone)
        (results,) = outcomes([handle])
        assert [each.tolist() for each in results] == [[size] * 3, [size] * 2, []]


def test_unnamed_calls_in_nested_graphs_are_named_after_their_lines(rank, size):
    @tf.function
    def step(x):
        outer = hvd.allreduce(x, op=hvd.Sum)
        inner = tf.cond(x[0] > -1, lambda: hvd.allreduce(10 * x, op=hvd.Sum), lambda: x)
        return outer, inner, total(x), tf.cond(x[0] > -1, lambda: total(2 * x), lambda: x)

    def total(x):
        return hvd.allreduce(x, op=hvd.Sum)

    ranks = size * (size + 1) / 2
    got = [each.numpy().tolist() for each in step(tf.fill([2], rank + 1.0))]
    assert got == [[factor * ranks] * 2 for factor in (1, 10, 1, 2)]


def test_tensorflow_collectives_in_loops_and_repeated_functions_run(size):
    """Iterations do not depend on each other but use one name."""

    @tf.function
    def total(x):
        return hvd.allreduce(x, op=hvd.Sum)

    @tf.function
    def step(x):
        found = tf.constant(0.0)
        for i in tf.range(20):
            found += hvd.allreduce(x * tf.cast(i, tf.float32), op=hvd.Sum)
        return found, total(x), total(10 * x)

    assert [float(each) for each in step(tf.constant(1.0))] == [190 * size, size, 10 * size]


def test_results_that_a_tensorflow_graph_does_not_use_are_freed(size):
    @tf.function
    def step(x):
        hvd.allreduce(x)
        return x

    before, most = len(exchange._graphs.started), exchange._MOST_AWAITED
    for _ in range(2 * most):
        step(tf.ones(1))
    assert len(exchange._graphs.started) == before + most


def test_failure_of_knows_an_error_of_a_graph_but_no_error_that_quotes_it():
    @tf.function
    def send(splits):
        return hvd.alltoall(tf.zeros([2]), splits, name="too-many")

    with pytest.raises(tf.errors.OpError) as raised:
        send(tf.fill([hvd.size()], 9))
    failure = failure_of(raised.value)
    assert failure.tensor == "alltoall.too-many" and "add up to" in str(failure)
    assert failure_of(tf.errors.UnknownError(None, None, f"seen before: {failure}")) is None


def test_a_graph_that_another_process_has_made_is_refused(size):
    """Without the error, an imported node could call another function of this process."""
    with tf.Graph().as_default() as graph:
        total = hvd.allreduce(tf.ones(2), op=hvd.Sum) + tf.cast(hvd.size_op(), tf.float32)
    for process, error in [(exchange._PROCESS, None), ("another", "make the graph again")]:
        definition = graph.as_graph_def()
        for node in definition.node:
            token = node.attr["token"]
            token.s = token.s.replace(exchange._PROCESS.encode(), process.encode())
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            tf.import_graph_def(definition, name="")
            if error is None:
                assert session.run(total.name).tolist() == [2 * size] * 2
                continue
            with pytest.raises(tf.errors.OpError, match=error):
                session.run(total.name)


def test_autograph_does_not_convert_the_python_functions_that_a_node_calls():
    """A conversion while the graph runs would make each call slow."""
    files = []

    def helper():
        files.append(sys._getframe().f_code.co_filename)
        return np.int32(1)

    assert tf.function(lambda: exchange.node(lambda: helper(), [], [tf.int32])[0])() == 1
    assert files == [__file__]


@everywhere
def test_the_gradient_of_an_uneven_alltoall_has_as_many_rows_as_the_input(how, rank, size):
    """The gradient sends back as many rows as were received, not as many as this rank sent."""

    def exchange(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(hvd.alltoall(x) * (rank + 1))
        return tape.gradient(loss, x)

    x = np.arange(size * (rank + 1), dtype=np.float32)
    expected = np.repeat(np.arange(size) + 1, rank + 1)
    np.testing.assert_array_equal(how(exchange, [x]), expected)
