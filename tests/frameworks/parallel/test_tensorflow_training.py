"""Training with TensorFlow: tapes, broadcasts of variables, optimizers, SyncBatchNormalization."""

import contextlib
from functools import partial

import numpy as np
import pytest
import tensorflow as tf
from numbers_of_ranks import NORM_EPSILON, check_far_from_zero

import hvdlite.tensorflow as hvd
import hvdlite.tensorflow.keras as hvd_keras

v1 = tf.compat.v1


def test_tensorflows_broadcast_hook_makes_variables_equal(rank, size):
    """Scripts for TensorFlow 1 use the hook; tests/contract tests training in sessions."""
    with tf.Graph().as_default():
        v = v1.get_variable("v", initializer=np.float32(rank))
        optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0))
        train = optimizer.minimize(v * (rank + 1))
        hooks = [hvd.BroadcastGlobalVariablesHook(size - 1)]
        with v1.train.MonitoredTrainingSession(hooks=hooks) as session:
            assert session.run(v) == size - 1
            session.run(train)
            assert session.run(v) == size - 1 - np.mean(range(1, size + 1), dtype=np.float32)


def test_broadcast_variables_works_in_a_graph(rank, size):
    with tf.Graph().as_default():
        v = v1.get_variable("v", initializer=np.float32(rank))
        broadcast = hvd.broadcast_global_variables(size - 1)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(broadcast)
            assert session.run(v) == size - 1
    v = tf.Variable(float(rank))
    assert float(tf.function(lambda: hvd.broadcast_([v], 0))()[0]) == 0
    assert float(v) == 0
    with pytest.raises(RuntimeError, match="use hvd.broadcast_variables"):
        hvd.broadcast_global_variables(0)


@pytest.mark.parametrize("as_dense", [False, True])
@pytest.mark.parametrize("traced", [False, True])
def test_sparse_gradients_of_an_embedding_are_averaged(as_dense, traced, rank, size):
    table = tf.Variable(tf.zeros([8, 2]))

    def gradient():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, [rank, 7])) * size
        return hvd.DistributedGradientTape(tape, sparse_as_dense=as_dense).gradient(loss, table)

    grad = (tf.function(gradient) if traced else gradient)()
    assert isinstance(grad, tf.IndexedSlices) != as_dense
    expected = [[float(row < size)] * 2 for row in range(7)] + [[float(size)] * 2]
    np.testing.assert_allclose(tf.convert_to_tensor(grad), expected)


def test_the_gradient_of_a_local_variable_is_not_averaged(rank, size):
    shared, own = tf.Variable(1.0), tf.Variable(1.0)
    with tf.GradientTape() as tape:
        loss = (shared + own) * (rank + 1.0)
    tape = hvd.DistributedGradientTape(tape)
    tape.register_local_source(own)
    grads = tape.gradient(loss, [shared, own, tf.Variable(0.0)])
    assert float(grads[0]) == (size + 1) / 2
    assert float(grads[1]) == pytest.approx((rank + 1) / size)
    assert grads[2] is None


def test_sync_batch_normalization_equals_the_joined_batch(rank, size):
    x = np.random.default_rng(1).normal(size=(4 * size, 3)).astype(np.float32)
    plain, synced = tf.keras.layers.BatchNormalization(), hvd.SyncBatchNormalization()
    expected = plain(x, training=True)
    own = np.array_split(np.arange(len(x)), size)[rank]
    np.testing.assert_allclose(synced(x[own], training=True), expected.numpy()[own], atol=1e-4)
    np.testing.assert_allclose(synced.moving_variance, plain.moving_variance, atol=1e-4)


@pytest.mark.parametrize("masked", [False, True])
def test_sync_batch_normalization_is_accurate_far_from_zero(masked):
    layer = hvd.SyncBatchNormalization(epsilon=NORM_EPSILON)

    @tf.function
    def normalize(x, dy):
        mask = tf.ones(x.shape[:-1]) if masked else None
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=True, mask=mask)
        return y, tape.gradient(y, x, output_gradients=dy)

    check_far_from_zero(lambda *arrays: [t.numpy() for t in normalize(*map(tf.constant, arrays))])


def test_tensorflows_distributed_optimizer_takes_keras_optimizers(rank, size):
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(1.0))
    w = tf.Variable([0.0])
    optimizer.apply_gradients([(tf.constant([float(rank)]), w)])
    assert float(w[0]) == -(size - 1) / 2
    assert hvd_keras.rank() == rank and hvd_keras.callbacks


def test_tensorflow_trains_on_after_a_rank_has_joined(rank, size):
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(1.0))
    w = tf.Variable([0.0])
    has_fewer_batches = rank == 0 and size > 1
    for _ in range(2 if has_fewer_batches else 4):
        optimizer.apply_gradients([(tf.constant([float(rank)]), w)])
    hvd.join()
    of_all, of_the_others = (size - 1) / 2, size / 2 if size > 1 else 0
    assert float(w[0]) == -2 * (of_all if has_fewer_batches else of_all + of_the_others)


def test_wrong_arguments_of_tensorflow_optimizers_are_refused():
    with pytest.raises(ValueError, match="expected a plain tf.GradientTape"):
        hvd.DistributedGradientTape(hvd.DistributedGradientTape(tf.GradientTape()))
    with pytest.raises(ValueError, match="backward_passes_per_step is 2: expected 1"):
        hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=2)


@pytest.mark.parametrize("in_session", [False, True])
def test_the_elastic_tensorflow_state_restores_and_syncs_variables(in_session, rank):
    """sync() gives all ranks rank 0's variables; restore() brings back the last commit."""
    with contextlib.ExitStack() as stack:
        if in_session:
            stack.enter_context(tf.Graph().as_default())
            v = v1.get_variable("v", initializer=[rank + 1.0])
            session = stack.enter_context(v1.Session())
            session.run(v.initializer)
            read, add = partial(session.run, v), partial(session.run, v.assign_add([2.0]))
        else:
            v = tf.Variable([rank + 1.0])
            read, add = v.numpy, partial(v.assign_add, [2.0])
        state = hvd.elastic.TensorFlowState([v], step=rank)
        state.sync()
        assert read() == [1.0] and state.step == 0
        add()
        state.save()
        add()
        state.restore()
        assert read() == [3.0]


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("differs", ["list", "loss", "kind"])
def test_a_tape_whose_variables_differ_between_ranks_is_an_error(differs, traced, rank, several):
    """Otherwise ranks would average gradients of different variables, or wait forever."""
    first = 7 if rank == 0 else 1  # a rank may have made more layers before
    a, b, c = (tf.Variable(tf.ones([2, 2]), name=f"layer_{first + i}/kernel") for i in range(3))

    def gradient(sources, used, rows):
        with tf.GradientTape() as tape:
            losses = [tf.reduce_sum(tf.gather(v, [0]) if v is rows else v) for v in used]
            loss = tf.add_n(losses) * (rank + 1.0)
        return hvd.DistributedGradientTape(tape).gradient(loss, sources)

    def run(*args):
        return (tf.function(lambda: gradient(*args)) if traced else partial(gradient, *args))()

    other = c if rank else b
    given = {
        "list": ([a, other], [a, b, c], None),
        "loss": ([a, b, c], [a, other], None),
        "kind": ([a, b, c], [a, b, c], None if rank else b),
    }
    shown = "the tape's gradients: ranks disagree on entry 2: rank 0: .*layer_8.*; rank 1: .*layer_"
    with pytest.raises((hvd.HvdliteError, tf.errors.OpError), match=shown):
        run(*given[differs])
    (mean,) = {float(grad[0, 0]) for grad in run([a, b, c], [a, b, c], None)}
    assert mean == (hvd.size() + 1) / 2


@pytest.mark.parametrize("what", ["weights", "momentum", "the global step"])
def test_a_checkpoint_that_only_one_rank_restores_is_an_error(what, rank, several, tmp_path):
    """Without the error, ranks would go on with equal gradients but different states."""
    with tf.Graph().as_default(), v1.Session() as session:
        start = np.full((3, 2), 1 + 1e-6 * rank, np.float32)  # CPUs may round differently
        w, step = v1.get_variable("w", initializer=start), v1.train.get_or_create_global_step()
        optimizer = hvd.DistributedOptimizer(v1.train.MomentumOptimizer(0.1, 0.9))
        train = optimizer.minimize(tf.reduce_sum(w**2), global_step=step)
        initialize, broadcast = v1.global_variables_initializer(), hvd.broadcast_global_variables(0)
        states = {"weights": w, "momentum": optimizer.get_slot(w, "momentum")}
        saver = v1.train.Saver([states.get(what, step)])
        session.run(initialize)
        session.run(train)
        path = saver.save(session, str(tmp_path / str(rank)))
        session.run(initialize)
        if rank == 0:
            saver.restore(session, path)
        shown = f"states: ranks disagree on entry 0: rank 0: {what} with .*; rank 1: {what} with"
        for _ in range(2):
            with pytest.raises(tf.errors.OpError, match=f"{shown}.* Restore a checkpoint on every"):
                session.run(train)
        session.run(broadcast)
        session.run(train)
        values = [value.tolist() for value in session.run(v1.global_variables())]
        assert all(other == values for other in hvd.allgather_object(values))
