"""Wrong values of each argument of all public calls: the same table for each framework."""

import inspect
import re

import numpy as np
import pytest

NAN, HUGE = float("nan"), 10**400
NO_NUMBERS = ["1", b"1", [1], {}, NAN, HUGE, 1j]
NO_FACTOR = [*NO_NUMBERS, False, np.bool_(False), None]
NO_WHOLE = [*NO_NUMBERS, 2.0, np.float32(2), True, np.bool_(True)]
NO_SET = ["0", b"0", [], [0], 0, 1.5, True, None]
WRONG = {
    "op": [*NO_WHOLE, 17, -1],
    "average": ["True", b"1", [1], NAN, 2, 1.5],
    "root_rank": [*NO_WHOLE, None, 99, -1],
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
WRONG["length"] = WRONG["seed"] = [*NO_WHOLE, None, -1]
SHOWN_AS = {"arrays": "tensors"}
VERBS = ["allreduce", "allgather", "broadcast", "alltoall", "reducescatter"]
VERBS += ["grouped_allreduce", "grouped_allgather", "grouped_reducescatter"]
FORMS = [f"{verb}{form}" for verb in VERBS for form in ("", "_", "_async", "_async_")]


def forms_of(module):
    """Parametrize a test by all collectives of a framework's module."""
    return pytest.mark.parametrize("verb", [verb for verb in FORMS if hasattr(module, verb)])


def check_verb(module, verb: str, tensor, rank: int) -> None:
    """Do :func:`check_refused` for one form of a collective, with a tensor of its framework."""
    function = getattr(module, verb)
    first = next(iter(inspect.signature(function).parameters))
    good = {first: [tensor, tensor + 1] if verb.startswith("grouped") else tensor, "name": "good"}
    if verb.startswith("broadcast"):
        good["root_rank"] = 0
    result = check_refused(function, rank, **good)
    if "async" in verb:
        module.synchronize(result)


def check_refused(function, rank: int, but=(), **good):
    """Rank 0 alone makes wrong calls: they raise at once, name the argument, and send nothing.

    All ranks make the good call afterwards, whose result comes back.

    :param but: arguments that are ignored.
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
