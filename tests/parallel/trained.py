"""What a trainer has trained, as arrays to compare bit by bit."""

import pickle

import mxnet as mx
import numpy as np
from nets import weights


def bits(net, trainer) -> dict:
    """The weights, and the states as a file of the trainer has them."""
    states, _ = pickle.loads(trainer._updaters[0].get_states(dump_optimizer=True))
    # Trainers number parameters by names that count the blocks of the process.
    names = {param.name: name for name, param in net._collect_params_with_prefix().items()}
    flat = {
        f"state of {names[trainer._params[i].name]}": [a.asnumpy() for a in arrays(each)]
        for i, each in states.items()
    }
    return {**{n: [w] for n, w in weights(net).items() if "running" not in n}, **flat}


def arrays(states) -> list:
    if states is None:
        return []
    return (
        [states] if isinstance(states, mx.nd.NDArray) else [a for each in states for a in
                                                            arrays(each)]
    )  # fmt: skip


def assert_same_bits(got: dict, expected: dict) -> None:
    assert got.keys() == expected.keys()
    for name, values in expected.items():
        assert len(values) == len(got[name])
        for value, mine in zip(values, got[name]):
            np.testing.assert_array_equal(mine, value, name)
