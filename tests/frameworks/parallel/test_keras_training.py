"""Keras 3 on the backend that KERAS_BACKEND names: optimizer, callbacks, saved models."""

import keras
import numpy as np
import pytest
from traces import counted

import hvdlite.keras as hvd

SAMPLES, BATCH, EPOCHS = 96, 24, 3  # BATCH is the global batch size, divisible by 1 to 4 ranks
BACKEND = keras.backend.backend()


def data():
    random = np.random.default_rng(0)
    x = random.normal(size=(SAMPLES, 6)).astype(np.float32)
    return x, np.tanh(x.sum(-1, keepdims=True)).astype(np.float32)


def net(seed: int):
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((6,)), *layers])


def fit(model, optimizer, x, y, batch: int, callbacks=(), epochs: int = EPOCHS):
    model.compile(optimizer, "mse")
    options = {"batch_size": batch, "epochs": epochs, "shuffle": False, "verbose": 0}
    return model.fit(x, y, callbacks=list(callbacks), **options).history


def difference(model, other) -> float:
    pairs = zip(model.get_weights(), other.get_weights())
    return max(float(np.abs(a - b).max()) for a, b in pairs)


def check_equal(model) -> None:
    values = [*model.get_weights(), *optimizer_values(model)]
    own = [(value + 0).tobytes() for value in values]  # + 0: PyTorch may set zeros to -0.0
    assert all(other == own for other in hvd.allgather_object(own))


def optimizer_values(model) -> list:
    return [np.asarray(keras.ops.convert_to_numpy(v)) for v in model.optimizer.variables]


OPTIMIZERS = {  # tests/contract tests momentum
    "adam": lambda: keras.optimizers.Adam(0.01),
    "clipped": lambda: keras.optimizers.SGD(0.5, clipnorm=0.05),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_keras_training_equals_one_process(kind, rank, size, report_parity):
    x, y = data()
    alone, model = net(0), net(rank)
    fit(alone, OPTIMIZERS[kind](), x, y, BATCH)
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS[kind]())
    first = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    mine = x[rank::size], y[rank::size]  # the ranks' batches i are together batch i of `alone`
    fit(model, optimizer, *mine, BATCH // size, first)
    check_equal(model)
    report_parity(f"Keras on {BACKEND}, {kind}", difference(model, alone), 2e-5)


def test_mixed_precision_wraps_the_optimizer_in_a_loss_scale():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    finally:
        keras.config.set_dtype_policy("float32")
    assert isinstance(optimizer, keras.optimizers.LossScaleOptimizer)


def test_initial_keras_weights_are_broadcast_and_metrics_averaged(rank, size):
    x, y = data()
    model = net(rank)
    start = [w.copy() for w in net(size - 1).get_weights()]
    seen = []

    class Look(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 0:
                seen.append([w.copy() for w in self.model.get_weights()])

        def on_epoch_end(self, epoch, logs=None):
            seen.append(logs["loss"])

    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(size - 1),
        hvd.callbacks.MetricAverageCallback(), Look(), hvd.callbacks.StatsCallback(),
    ]  # fmt: skip
    history = fit(model, keras.optimizers.SGD(0.0), x + rank, y, SAMPLES, callbacks, 1)
    assert all((a == b).all() for a, b in zip(seen[0], start))
    assert history["hvd/tensors"][0] > 0 and "hvd/step_seconds" in history
    reference = net(size - 1)
    reference.compile(loss="mse")
    losses = [reference.evaluate(x + r, y, SAMPLES, verbose=0) for r in range(size)]
    assert history["loss"] == [seen[1]] == [pytest.approx(np.mean(losses), rel=1e-5)]


def rates_of(callback, optimizer, epochs: int, batches: int) -> list:
    """Return the learning rate of each batch; check the rate that the history has per epoch."""
    rates = []

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            rates.append(float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate)))

    x, y = data()
    history = fit(net(0), optimizer, x, y, SAMPLES // batches, [callback, Look()], epochs)
    assert history["lr"] == [pytest.approx(r) for r in rates[batches - 1 :: batches]]
    return rates


def test_seeds_of_random_keras_layers_are_broadcast(rank):
    keras.utils.set_random_seed(rank)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    fit(model, "sgd", *data(), BATCH, [hvd.callbacks.BroadcastGlobalVariablesCallback(0)], epochs=0)
    seeds = [np.asarray(keras.ops.convert_to_numpy(v)).tobytes() for v in model.variables]
    assert all(other == seeds for other in hvd.allgather_object(seeds))


def test_initial_weights_are_broadcast_if_one_rank_has_built_the_keras_model(rank):
    keras.utils.set_random_seed(rank)
    model = keras.Sequential([keras.layers.Dense(1)])
    if rank == 0:
        model.build((None, 6))
    first = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    fit(model, hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), *data(), BATCH, [first], 1)
    check_equal(model)


def test_weights_of_bfloat16_stay_equal_on_all_ranks(rank, size):
    x, y = data()
    layer = keras.layers.Dense(1, kernel_initializer="ones", dtype="bfloat16")
    model = keras.Sequential([keras.Input((6,)), layer])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    fit(model, optimizer, x[rank::size], y[rank::size], BATCH // size)
    check_equal(model)


def test_keras_warmup_raises_the_learning_rate_at_each_batch(size):
    warm_up = hvd.callbacks.LearningRateWarmupCallback(initial_lr=0.4, warmup_epochs=2, verbose=1)
    rates = rates_of(warm_up, hvd.DistributedOptimizer(keras.optimizers.SGD(0.4)), 3, 4)
    rising = [0.4 / size * (1 + (i + 1) / 8 * (size - 1)) for i in range(8)]
    assert rates == pytest.approx(rising + [0.4] * 4)


def test_a_keras_schedule_sets_the_learning_rate_of_its_epochs():
    halve = hvd.callbacks.LearningRateScheduleCallback(0.4, 0.5, start_epoch=1, end_epoch=3)
    assert rates_of(halve, keras.optimizers.SGD(0.3), 4, 2) == pytest.approx(
        [0.3, 0.3, 0.4, 0.4, 0.2, 0.2, 0.2, 0.2]
    )
    with pytest.raises(ValueError, match="initial_lr is None"):
        hvd.callbacks.LearningRateScheduleCallback(None, 1)


@pytest.mark.parametrize("correct", [False, True])
def test_momentum_correction_scales_velocity_when_the_rate_changes(correct, size):
    """The velocity is a sum of gradients times rates, so the callback scales it with the rate."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.set_weights([np.zeros((1, 1))])
    change = hvd.callbacks.LearningRateScheduleCallback(
        0.1, lambda epoch: [1, 10][int(epoch)], momentum_correction=correct
    )
    model.compile(keras.optimizers.SGD(0.1, momentum=0.5), lambda y, p: keras.ops.mean(p))
    x = np.ones((2, 1), np.float32)
    model.fit(x, x, batch_size=2, epochs=2, verbose=0, callbacks=[change])
    old = 0.5 * 0.1 * (10 if correct else 1)
    assert model.get_weights()[0][0, 0] == pytest.approx(-(0.1 + (old + 1.0)))


def test_a_loaded_model_has_a_distributed_optimizer_again(rank, size, tmp_path):
    x, y = data()
    mine = x[rank::size], y[rank::size]
    model = net(0)
    fit(model, hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), *mine, BATCH // size)
    path = str(tmp_path / "model.keras")
    model.save(path)
    plain = keras.models.load_model(path)
    assert isinstance(plain.optimizer, type(keras.optimizers.Adam()))
    assert not isinstance(plain.optimizer, type(model.optimizer))
    loaded = hvd.load_model(path)
    for one in (model, loaded):
        one.fit(*mine, batch_size=BATCH // size, shuffle=False, verbose=0)
    check_equal(loaded)
    assert difference(model, loaded) == 0


@pytest.mark.skipif(BACKEND != "torch", reason="TensorFlow and JAX bring tensors to the CPU")
def test_gradients_on_an_unsupported_device_are_refused():
    import torch

    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD())
    variables = [keras.Variable(np.ones(2)), keras.Variable(np.ones(2))]
    optimizer.build(variables)
    with pytest.raises(
        ValueError, match="gradient 1' is on meta: .* not take tensors on this device"
    ):
        optimizer._averaged([torch.ones(2), torch.ones(2, device="meta")], variables)


def test_wrong_arguments_of_keras_are_refused():
    with pytest.raises(RuntimeError, match="Keras 3 has no global variables"):
        hvd.broadcast_global_variables(0)
    with pytest.raises(ValueError, match="expected a plain optimizer of Keras, got str"):
        hvd.DistributedOptimizer("sgd")
    with pytest.raises(ValueError, match="expected a plain optimizer of Keras, got SGD that is"):
        hvd.DistributedOptimizer(hvd.DistributedOptimizer(keras.optimizers.SGD()))
    with pytest.raises(ValueError, match="expected an optimizer that is not built yet"):
        keras_own = keras.optimizers.SGD(gradient_accumulation_steps=2)
        hvd.DistributedOptimizer(keras_own, backward_passes_per_step=2)


@pytest.mark.skipif(BACKEND == "jax", reason="on JAX, Keras itself refuses frozen variables")
@pytest.mark.parametrize("frozen", [(0,), (0, 2)], ids=["on rank 0", "another on rank 1"])
def test_the_error_names_a_layer_that_is_frozen_on_some_ranks(frozen, rank, size, several):
    """Keras leaves out frozen variables, so ranks could average gradients of different layers."""
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(6) for _ in range(3)]
    model = keras.Sequential([keras.Input((6,)), *layers])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    x = np.full((8, 6), rank + 1, np.float32)
    fit(model, optimizer, x, x, 8)
    if rank < len(frozen):
        layers[frozen[rank]].trainable = False
    shown = r"rank 0: gradient of variable 2 \(.*dense.*/kernel\); rank 1: .* variable 0"
    with pytest.raises(Exception, match=shown):
        fit(model, optimizer, x, x, 8, epochs=1)
    for layer in layers:
        layer.trainable = True
    fit(model, optimizer, x, x, 8)  # no gradient of the failed step is still under way
    check_equal(model)


def test_if_ranks_freeze_different_layers_the_error_names_the_variable(rank, several):
    """A variable's number is its position in the optimizer of the rank that the error names."""
    layers = [keras.layers.Dense(6) for _ in range(3)]
    model = keras.Sequential([keras.Input((6,)), *layers])
    layers[1 + min(rank, 1)].trainable = False
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    x = np.full((8, 6), rank + 1, np.float32)
    with pytest.raises(Exception, match="rank 0: gradient of variable 2 .*; rank 1: .*variable 2"):
        fit(model, optimizer, x, x, 8, epochs=1)


def test_the_monitor_counts_the_steps_of_keras():
    x, model = np.ones((2, 6), np.float32), net(0)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    assert 90 < counted(lambda: model.train_on_batch(x, x[:, :1]), 120) <= 121
