"""Compare the weights and states of a trainer with those of another trainer or another rank."""

import pickle

import mxnet as mx
import numpy as np
from mxnet import gluon
from nets import backward, weights

import hvdlite as hvd

# Optimizers whose updates hvdlite's core computes; test_sharded.py tests others, too.
RULES = [
    ("sgd", {"learning_rate": 0.05}),
    ("sgd", {"learning_rate": 0.05, "momentum": 0.9, "wd": 0.01, "clip_gradient": 0.1}),
    ("nag", {"learning_rate": 0.05, "momentum": 0.9, "wd": 0.01}),
    ("adam", {"learning_rate": 0.01, "wd": 0.01}),
]


def gradients_of(net) -> list:
    return [p.grad() for p in net.collect_params().values() if p.grad_req != "null"]


def one_step(net, trainer, x, clip: bool = False) -> None:
    backward(net, x)
    if clip:
        trainer.allreduce_grads()
        gluon.utils.clip_global_norm(gradients_of(net), 0.5)
        trainer.update(len(x))
    else:
        trainer.step(len(x))


def trained_weights(net) -> dict:
    """Return the weights without BatchNorm's statistics, which differ between ranks."""
    return {name: w for name, w in weights(net).items() if "running" not in name}


def bits(net, trainer) -> dict:
    """Return the weights, and the optimizer states as the trainer saves them to a file."""
    states, _ = pickle.loads(trainer._updaters[0].get_states(dump_optimizer=True))
    # Gluon's names contain a count of the process's blocks: map them to the names in the net.
    names = {param.name: name for name, param in net._collect_params_with_prefix().items()}
    flat = {
        f"state {k} of {names[trainer._params[i].name]}": array.asnumpy()
        for i, each in states.items()
        for k, array in enumerate(arrays(each))
    }
    return {**trained_weights(net), **flat}


def arrays(states) -> list:
    if states is None:
        return []
    if isinstance(states, mx.nd.NDArray):
        return [states]
    return [array for each in states for array in arrays(each)]


def assert_close(actual: dict, expected: dict, tolerance: float = 2e-5) -> None:
    assert actual.keys() == expected.keys()
    for name, value in actual.items():
        np.testing.assert_allclose(value, expected[name], tolerance, tolerance, err_msg=name)


def assert_equal_on_all_ranks(values: dict) -> None:
    """Assert that the values of all ranks are bitwise equal."""
    everyone = hvd.allgather_object(values)
    for rank, theirs in enumerate(everyone):
        for name, value in values.items():
            np.testing.assert_array_equal(value, theirs[name], f"{name} of rank {rank}")


def largest_difference(actual: dict, expected: dict) -> float:
    """Return the largest difference, relative to the expected weight's magnitude plus 0.01."""
    return max(
        float((np.abs(value - expected[name]) / (np.abs(expected[name]) + 0.01)).max())
        for name, value in actual.items()
    )
