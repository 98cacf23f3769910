"""Saved, loaded or copied Keras models continue training like the original model, or raise."""

import contextlib
import copy
import pickle
import re

import keras
import numpy as np
import pytest

import hvdlite.keras as hvd

HOW = [
    {"backward_passes_per_step": 2},
    {"backward_passes_per_step": 2, "average_aggregated_gradients": True},
    {"op": hvd.Sum},
]


def in_two_passes(**options):
    return hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.1), **{"backward_passes_per_step": 2, **options}
    )


def unit_model(rank, optimizer):
    """Return a model of one weight, and data with which its gradient is rank + 1 in each batch."""
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((1,)), layer])
    model.compile(optimizer, linear)
    return model, np.full((8, 1), rank + 1, "float32")


@keras.saving.register_keras_serializable()
def linear(y, output):
    return output


def trained(model, x, batches=4, **options) -> float:
    model.fit(x[: 2 * batches], x[: 2 * batches], 2, shuffle=False, verbose=0, **options)
    return float(model.get_weights()[0].item())


def refused_if(several):
    text = "would train alone: Keras has made a plain optimizer from a DistributedOptimizer"
    return pytest.raises(RuntimeError, match=text) if several else contextlib.nullcontext()


@pytest.mark.parametrize(
    "how, batches", [(HOW[0], 4), (HOW[0], 3), (HOW[1], 3), (HOW[2], 4)], ids=str
)
def test_a_loaded_model_goes_on_with_steps_of_the_same_size(how, batches, rank, size, tmp_path):
    """With 3 batches, each rank saves the model between two passes of a step."""
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), **how)
    model, x = unit_model(rank, optimizer)
    passes = how.get("backward_passes_per_step", 1)
    a_batch = -0.1 * (size + 1) / 2 * (size if "op" in how else 1)
    a_batch /= passes if "average_aggregated_gradients" in how else 1
    assert trained(model, x, batches) == pytest.approx(a_batch * (batches - batches % passes))
    path = str(tmp_path / f"{rank}.keras")
    model.save(path)
    with refused_if(size > 1):
        assert trained(keras.models.load_model(path), x) < 0  # loaded without hvdlite
    loaded = hvd.load_model(path)
    if batches % passes:
        hint = f"rank 0 has saved the model after pass 1.*rank {rank} goes on"
        with pytest.warns(UserWarning, match=hint) if rank else contextlib.nullcontext():
            hvd.load_model(hvd.broadcast_object(path))
    done = batches + 4
    assert trained(loaded, x) == pytest.approx(a_batch * (done - done % passes))


def test_a_model_saved_before_it_is_built_can_be_loaded(rank, size, tmp_path):
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model, path = keras.Sequential([layer]), str(tmp_path / f"{rank}.keras")
    model.compile(in_two_passes(), linear)
    model.save(path)
    x = np.full((8, 1), rank + 1, "float32")
    assert trained(hvd.load_model(path), x) == pytest.approx(-0.2 * (size + 1))


def test_a_loaded_model_keeps_its_local_layers(rank, size, tmp_path):
    model, x = unit_model(rank, "sgd")
    optimizer = keras.optimizers.SGD(0.1)
    local = {"local_layers": model.layers[0], "scale_local_gradients": False}
    model.compile(hvd.PartialDistributedOptimizer(optimizer, **local), linear)
    trained(model, x)
    path = str(tmp_path / f"{rank}.keras")
    model.save(path)
    assert trained(hvd.load_model(path), x) == pytest.approx(-0.8 * (rank + 1))


def test_a_model_loaded_on_one_rank_is_broadcast(rank, size, tmp_path):
    """Examples of Horovod load a model on one rank and broadcast it."""
    model, x = unit_model(rank, in_two_passes())
    trained(model, x)
    path = str(tmp_path / "model.keras")
    model.save(path)
    hvd.barrier()
    again = unit_model(rank, in_two_passes())[0] if rank else hvd.load_model(path)
    first = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    after = trained(again, x, callbacks=[first])
    assert after == pytest.approx(-0.8 * (size + 1) / 2)


@pytest.mark.parametrize("what", ["another optimizer", "other settings", "iteration 7"])
def test_the_error_names_the_rank_whose_optimizer_is_at_another_step(
    what, rank, size, several, tmp_path
):
    """For example, only one rank has loaded a model. Every rank gets the error; none waits."""
    made = in_two_passes(average_aggregated_gradients=what == "other settings" and rank == 0)
    model, x = unit_model(rank, made)
    if what != "other settings":
        trained(model, x)
        model.save(str(tmp_path / f"{rank}.keras"))
    if rank == 0 and what == "another optimizer":
        model = hvd.load_model(str(tmp_path / "0.keras"))
    elif rank == 0 and what == "iteration 7":
        made._iterations.assign(6)
    shown = {
        "another optimizer": "rank 0: optimizer",
        "other settings": r"times 1\); rank.* times 2",
        "iteration 7": "rank 0: iteration [67]; rank.*: iteration [45]",
    }
    with pytest.raises(Exception, match="the optimizer's step: ranks disagree") as caught:
        trained(model, x, 2)
    assert re.search(shown[what], str(caught.value)), str(caught.value)
    if rank and what == "another optimizer":
        # every rank must have made equally many optimizers, because hvdlite compares their numbers
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))


def test_a_keras_file_without_average_aggregated_gradients_is_refused(rank, tmp_path):
    model, x = unit_model(rank, in_two_passes())
    trained(model, x)
    path = str(tmp_path / f"{rank}.h5")
    model.save(path)
    with pytest.raises(ValueError, match="applies their sum or their mean"):
        hvd.load_model(path)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copying_a_distributed_keras_optimizer_is_refused(copied):
    """Each rank would silently train alone with the copy."""
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    with pytest.raises(TypeError, match="ranks would train alone: give a plain optimizer"):
        copied(optimizer)


def from_configuration(model):
    copied = keras.models.clone_model(model)
    copied.compile_from_config(model.get_compile_config())
    return copied


@pytest.mark.parametrize("scaled", [False, True], ids=["", "scaled"])
@pytest.mark.parametrize("copied", [copy.deepcopy, from_configuration])
def test_training_a_copy_of_a_model_without_recompiling_is_refused(copied, scaled, rank, size):
    """Keras gives the copy a plain optimizer, with which each rank would silently train alone."""
    plain = keras.optimizers.SGD(0.1)
    plain = keras.optimizers.LossScaleOptimizer(plain) if scaled else plain
    model, x = unit_model(rank, hvd.DistributedOptimizer(plain))
    with refused_if(size > 1):
        trained(copied(model), x)
    again = copied(model)  # on JAX, the training that failed has deleted the first copy's weights
    again.compile(hvd.DistributedOptimizer(again.optimizer), linear)
    before = float(again.get_weights()[0].item())
    assert trained(again, x) - before == pytest.approx(-0.4 * (size + 1) / 2)
