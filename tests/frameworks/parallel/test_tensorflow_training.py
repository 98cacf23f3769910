"""Training with TensorFlow: tape, variables, Keras's and sessions' optimizers, batch statistics."""

import numpy as np
import pytest
import tensorflow as tf
from batch_norm import EPSILON, check_far_from_zero

import hvdlite.tensorflow as hvd
import hvdlite.tensorflow.keras as hvd_keras

v1 = tf.compat.v1
SAMPLES, INPUTS = 48, 6  # samples of all ranks in a step; divided evenly among 1 to 4 ranks


def data():
    random = np.random.default_rng(0)
    x = random.normal(size=(4, SAMPLES, INPUTS)).astype(np.float32)
    return x, np.tanh(x.sum(-1, keepdims=True)).astype(np.float32)


def start_weights(seed: int):
    random = np.random.default_rng(seed)
    shapes = [(INPUTS, 5), (5,), (5, 1)]
    return [random.normal(size=shape).astype(np.float32) for shape in shapes]


def loss_of(weights, x, y):
    hidden = tf.tanh(x @ weights[0] + weights[1])
    return tf.reduce_mean((hidden @ weights[2] - y) ** 2)


def train_alone() -> list:
    weights = [tf.Variable(w) for w in start_weights(0)]
    optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)
    for x, y in zip(*data()):
        with tf.GradientTape() as tape:
            loss = loss_of(weights, x, y)
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
    return [w.numpy() for w in weights]


def difference(trained, expected) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(trained, expected))


def check_equal(values) -> None:
    own = [np.asarray(value).tobytes() for value in values]
    assert all(other == own for other in hvd.allgather_object(own))


def test_a_session_trains_as_one_process(rank, size, report_parity):
    """With the hook, as scripts of TensorFlow 1 do."""
    with tf.Graph().as_default():
        weights = [
            v1.get_variable(f"w{i}", initializer=w) for i, w in enumerate(start_weights(rank))
        ]
        x = v1.placeholder(tf.float32, [None, INPUTS])
        y = v1.placeholder(tf.float32, [None, 1])
        optimizer = hvd.DistributedOptimizer(v1.train.MomentumOptimizer(0.1, 0.9))
        train = optimizer.minimize(loss_of(weights, x, y))
        hooks = [hvd.BroadcastGlobalVariablesHook(0)]
        with v1.train.MonitoredTrainingSession(hooks=hooks) as session:
            for batch, labels in zip(*data()):
                session.run(train, {x: batch[rank::size], y: labels[rank::size]})
            trained = session.run(weights)
    check_equal(trained)
    report_parity("session", difference(trained, train_alone()), 1e-5)


def test_broadcast_in_a_graph(rank, size):
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
def test_rows_of_an_embedding(as_dense, traced, rank, size):
    table = tf.Variable(tf.zeros([8, 2]))

    def gradient():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, [rank, 7])) * size
        return hvd.DistributedGradientTape(tape, sparse_as_dense=as_dense).gradient(loss, table)

    grad = (tf.function(gradient) if traced else gradient)()
    assert isinstance(grad, tf.IndexedSlices) != as_dense
    expected = [[float(row < size)] * 2 for row in range(7)] + [[float(size)] * 2]
    np.testing.assert_allclose(tf.convert_to_tensor(grad), expected)


def test_a_variable_of_this_rank_alone(rank, size):
    shared, own = tf.Variable(1.0), tf.Variable(1.0)
    with tf.GradientTape() as tape:
        loss = (shared + own) * (rank + 1.0)
    tape = hvd.DistributedGradientTape(tape)
    tape.register_local_source(own)
    grads = tape.gradient(loss, [shared, own, tf.Variable(0.0)])
    assert float(grads[0]) == (size + 1) / 2
    assert float(grads[1]) == pytest.approx((rank + 1) / size)
    assert grads[2] is None


def test_batch_statistics_of_all_ranks(rank, size):
    x = np.random.default_rng(1).normal(size=(4 * size, 3)).astype(np.float32)
    plain, synced = tf.keras.layers.BatchNormalization(), hvd.SyncBatchNormalization()
    expected = plain(x, training=True)
    own = np.array_split(np.arange(len(x)), size)[rank]
    np.testing.assert_allclose(synced(x[own], training=True), expected.numpy()[own], atol=1e-4)
    np.testing.assert_allclose(synced.moving_variance, plain.moving_variance, atol=1e-4)


@pytest.mark.parametrize("masked", [False, True])
def test_batch_statistics_of_a_mean_of_a_thousand_deviations(masked):
    layer = hvd.SyncBatchNormalization(epsilon=EPSILON)

    @tf.function
    def normalise(x, dy):
        mask = tf.ones(x.shape[:-1]) if masked else None
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=True, mask=mask)
        return y, tape.gradient(y, x, output_gradients=dy)

    check_far_from_zero(lambda *arrays: [t.numpy() for t in normalise(*map(tf.constant, arrays))])


def test_an_optimizer_of_keras_is_distributed_here_too(rank, size):
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(1.0))
    w = tf.Variable([0.0])
    optimizer.apply_gradients([(tf.constant([float(rank)]), w)])
    assert float(w[0]) == -(size - 1) / 2
    assert hvd_keras.rank() == rank and hvd_keras.callbacks


def test_wrong_arguments():
    with pytest.raises(ValueError, match="expected a plain tf.GradientTape"):
        hvd.DistributedGradientTape(hvd.DistributedGradientTape(tf.GradientTape()))
    with pytest.raises(ValueError, match="backward_passes_per_step is 2: expected 1"):
        hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=2)
    with pytest.raises(ValueError, match="goes with op=Average only"):
        tape = tf.GradientTape()
        hvd.DistributedGradientTape(tape, op=hvd.Sum, gradient_predivide_factor=2)
