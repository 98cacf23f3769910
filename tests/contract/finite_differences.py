"""Compare gradients of collectives with finite differences, in the same cases for each library."""

import numpy as np
import pytest
from libraries import first_of

import hvdlite.numpy as neutral

# gradient = factor * derivative of the sum of all ranks' losses; see docs/training.md.
FACTORS = {
    "allreduce": lambda size: 1,
    "allgather": lambda size: 1 / size,
    "broadcast": lambda size: 1 / size,
    "alltoall": lambda size: 1,
    "reducescatter": lambda size: size,
}
_SCALES = {"prescale_factor": 3.0, "postscale_factor": 0.5}
_HOW = [{"op": neutral.Sum}, {"op": neutral.Average}, {"op": neutral.Sum, **_SCALES}]
every_case = pytest.mark.parametrize(
    "verb, options",
    [
        *(("allreduce", how) for how in _HOW),
        *(("reducescatter", how) for how in _HOW),
        *(("broadcast", {"root_rank": root}) for root in (0, -1)),
        ("allgather", {}),
        ("alltoall", {}),
        ("grouped_allreduce", _HOW[2]),
        ("grouped_allgather", {}),
        ("grouped_reducescatter", _HOW[1]),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values())),
)


def check_gradient(lib, verb: str, options: dict, rank: int, size: int) -> None:
    """Compare this rank's gradient with the change of the loss for each element of its input.

    :param lib: ``lib.gradient(verb, column, options, weight)`` calls the collective ``verb`` with a
        float64 column. The loss is the sum of the result times ``weight(shape of the result)``.
        ``lib.gradient`` returns the loss and its gradient.
    """
    base, options = verb.removeprefix("grouped_"), dict(options)
    rows = [
        {"allgather": r + 1, "alltoall": size * (size + 1) // 2 + 1}.get(base, 2 * size + 1)
        for r in range(size)
    ]
    if base == "broadcast":
        options["root_rank"] %= size
    if base == "alltoall":
        options["splits"] = [1 + to for to in range(size)]  # the splits leave one row unsent

    def weight(shape) -> np.ndarray:
        return np.random.RandomState(50 + rank).normal(size=shape)

    def of_all(loss) -> float:
        return neutral.allreduce(np.array([loss]), "loss", op=neutral.Sum)[0]

    def loss_by_numpy(values) -> float:
        given = [values, 2 * values] if verb.startswith("grouped_") else values
        results = first_of(getattr(neutral, verb)(given, **options))
        return of_all(sum((each * weight(each.shape)).sum() for each in results))

    own = np.random.RandomState(rank).normal(size=(rows[rank], 1))
    loss, gradient = lib.gradient(verb, own, options, weight)
    total = of_all(loss)
    differences = np.empty_like(own)
    for r in range(size):
        for i in range(rows[r]):
            moved = own.copy()
            if r == rank:
                moved[i] += 1
            difference = loss_by_numpy(moved) - total  # exact, because these functions are linear
            if r == rank:
                differences[i] = difference
    np.testing.assert_allclose(gradient, FACTORS[base](size) * differences, rtol=1e-6, atol=1e-9)
