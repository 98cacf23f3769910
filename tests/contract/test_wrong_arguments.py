"""A wrong argument of any type raises an error that names the argument; the job goes on."""

import inspect
import re

import numpy as np
import pytest
from libraries import LIBRARIES, mx, tf, torch

import hvdlite as hvd
import hvdlite.numpy

NAN, HUGE = float("nan"), 10**400
NO_NUMBERS = ["1", b"1", [1], {}, NAN, HUGE, 1j]
NO_FACTOR = [*NO_NUMBERS, False, np.bool_(False), None]
NO_WHOLE = [*NO_NUMBERS, 2.0, np.float32(2), True, np.bool_(True)]
NO_SET = ["0", b"0", [], [0], 0, 1.5, True, None]
WRONG = {
    "op": [*NO_WHOLE, 17, -1],
    "average": ["True", b"1", [1], NAN, 2, 1.5],
    "root_rank": [*NO_WHOLE, None, hvd.size(), -1],
    "process_set": NO_SET,
    "name": [b"x", 5, 1.5, ["x"], True, {}],
    "prescale_factor": NO_FACTOR,
    "postscale_factor": NO_FACTOR,
    "priority": [*NO_WHOLE, None],
    "tensors": [None, 5, 1.5, True],
    "arrays": [None, 5, 1.5, True],
    "gradient_predivide_factor": [*NO_FACTOR, 0.0, -1],
    "num_groups": [*NO_WHOLE, None, -1],
    "backward_passes_per_step": [*NO_WHOLE, None, 0],
}
WRONG["compression"] = [None, "fp16", b"fp16", 5, True, [1], {}]
WRONG["dataset"] = ["sum", b"x", None, 1.5, True, -1, NAN]
WRONG["length"] = WRONG["seed"] = [*NO_WHOLE, None, -1]
SHOWN_AS = {"arrays": "tensors"}
VERBS = ["allreduce", "allgather", "broadcast", "alltoall", "reducescatter"]
VERBS += ["grouped_allreduce", "grouped_allgather", "grouped_reducescatter"]
FORMS = [f"{verb}{form}" for verb in VERBS for form in ("", "_", "_async", "_async_")]


# module -> a library that makes arrays for it
MODULES = {lib.hvd: lib for lib in reversed(LIBRARIES)}


def weight():
    made = mx.gluon.Parameter("w", shape=(1,))
    made.initialize()
    return {"w": made}


# Functions that reduce or move no array, each with a function that returns correct arguments.
OTHERS = [
    (hvd.broadcast_object, lambda: {"obj": 1}),
    (hvd.allgather_object, lambda: {"obj": 1}),
    (hvd.barrier, dict),
    (hvd.join, dict),
    (hvd.remove_process_set, lambda: {"process_set": hvd.global_process_set}),
    (hvd.elastic.ElasticSampler, lambda: {"dataset": 10, "seed": 1}),
]
if mx:
    OTHERS += [
        (hvd.broadcast_parameters, lambda: {"params": {"w": mx.nd.ones(2)}, "root_rank": 0}),
        (hvd.DistributedOptimizer, lambda: {"optimizer": mx.optimizer.SGD(learning_rate=0.1)}),
        (
            hvd.DistributedTrainer,
            lambda: {"params": weight(), "optimizer": "sgd", "optimizer_params": {}},
        ),
        (hvd.DistributedSampler, lambda: {"length": 8, "seed": 1}),
    ]
if torch:
    model = torch.nn.Linear(2, 2)
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    OTHERS += [
        (hvdlite.torch.join, dict),
        (
            hvdlite.torch.broadcast_parameters,
            lambda: {"params": model.state_dict(), "root_rank": 0},
        ),
        (hvdlite.torch.broadcast_optimizer_state, lambda: {"optimizer": sgd, "root_rank": 0}),
        (hvdlite.torch.DistributedOptimizer, lambda: {"optimizer": sgd}),
    ]
if tf:
    import keras

    import hvdlite.keras

    MODULES[hvdlite.keras] = MODULES[hvdlite.tensorflow]
    variables = [tf.Variable(1.0)]
    OTHERS += [
        (
            hvdlite.tensorflow.broadcast_,
            lambda: {"variables": variables, "root_rank": 0, "name": "good"},
        ),
        (hvdlite.tensorflow.broadcast_variables, lambda: {"variables": variables, "root_rank": 0}),
        (hvdlite.keras.broadcast_variables, lambda: {"variables": variables}),
        (
            hvdlite.keras.DistributedOptimizer,
            lambda: {"optimizer": keras.optimizers.SGD(0.1), "but": ("name",)},
        ),
    ]


def is_form(module, verb: str) -> bool:
    """Return whether the function exists and takes tensors; TensorFlow's broadcast_ does not."""
    return hasattr(module, verb) and (MODULES[module].in_place or not verb.endswith("_"))


@pytest.mark.parametrize(
    "module, verb",
    [(module, verb) for module in MODULES for verb in FORMS if is_form(module, verb)],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_collectives_error_names_the_invalid_argument(module, verb, rank, size):
    function, tensor = getattr(module, verb), MODULES[module].make(np.ones((size, 2)))
    first = next(iter(inspect.signature(function).parameters))
    good = {first: [tensor, tensor + 1] if verb.startswith("grouped") else tensor, "name": verb}
    if verb.startswith("broadcast"):
        good["root_rank"] = 0
    result = check_refused(function, rank, **good)
    if "async" in verb:
        module.synchronize(result)


@pytest.mark.parametrize(
    "function, good", OTHERS, ids=lambda value: getattr(value, "__qualname__", "")
)
def test_the_error_of_a_function_names_the_wrong_argument(function, good, rank):
    check_refused(function, rank, **good())


@pytest.mark.skipif(not torch, reason="needs PyTorch")
def test_the_error_of_sparse_allreduce_async_names_the_wrong_argument(rank):
    sparse = torch.eye(2).to_sparse(1)
    start = hvdlite.torch.sparse_allreduce_async
    handle = check_refused(start, rank, tensor=sparse, name="good", op=hvd.Sum)
    hvdlite.torch.synchronize(handle)


def check_refused(function, rank: int, but=(), **good):
    """Check that wrong calls on only rank 0 raise errors that name the argument and send nothing.

    All ranks then make the correct call, whose result is returned.

    :param but: arguments that are not tested.
    """
    for argument in (each for each in inspect.signature(function).parameters if each not in but):
        for value in WRONG.get(argument, ()) if rank == 0 else ():
            _check_one(function, argument, {**good, argument: value})
    return function(**good)


def _check_one(function, argument: str, arguments: dict) -> None:
    shown = f"{function.__name__}({argument}={arguments[argument]!r:.40})"
    try:
        function(**arguments)
    except (ValueError, TypeError) as error:
        named = SHOWN_AS.get(argument, argument) in str(error)
        assert named and re.search("expected|must be finite", str(error)), f"{shown}: {error!r}"
    else:
        pytest.fail(f"{shown} was accepted")


@pytest.mark.parametrize(
    "splits", ["1", b"1", 5, [None], ["1"], [True], [float("nan")], [[1], [1, 2]], [-1], [10**30]]
)
def test_splits_of_a_wrong_type_or_value_raise_on_every_rank(splits, rank, size):
    """All ranks wait for each other's row counts, so every rank gets the error."""
    given = splits * size if isinstance(splits, list) and len(splits) == 1 else splits
    for _ in range(2):
        with pytest.raises(ValueError, match="rank 0: tensor 'alltoall.t': splits"):
            hvdlite.numpy.alltoall(np.ones((size, 2)), given if rank == 0 else [1] * size, "t")
    assert hvdlite.numpy.alltoall(np.ones((size, 2)), name="t").shape == (size, 2)


@pytest.mark.parametrize("ranks", [b"x", "01", "", None, 5, [0.0], [True], ["0"], [None], 1.5])
def test_a_process_set_with_invalid_ranks_is_refused(ranks):
    with pytest.raises(ValueError, match="ranks is .*expected a list of ranks"):
        hvd.ProcessSet(ranks)
    with pytest.raises(ValueError, match="ranks is .*expected a list of ranks"):
        hvd.add_process_set(ranks)


def test_a_process_set_accepts_numpy_integers(size):
    made = hvd.add_process_set(np.arange(size - 1)) if size > 1 else hvd.global_process_set
    assert made.ranks == list(range(max(size - 1, 1)))
    hvd.remove_process_set(made)
