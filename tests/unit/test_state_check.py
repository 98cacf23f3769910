"""The comparisons of optimizer states and step numbers, with any number of ranks."""

import numpy as np
import pytest

from hvdlite.training.state_check import _facts, differing
from hvdlite.training.step_check import RANGE, are_equal

RANKS = 1, 2, 3, 15, 49, 98, 1000


@pytest.mark.parametrize("ranks", RANKS)
def test_equal_step_numbers_of_all_ranks_are_accepted(ranks):
    for number in (0.0, 1.0, 48_611.0, RANGE - 1.0):
        assert are_equal(ranks * number, ranks * number**2, ranks)


@pytest.mark.parametrize("ranks", RANKS[1:])
def test_a_step_number_that_differs_on_one_rank_is_found(ranks):
    numbers = np.full(ranks, RANGE - 2.0)
    numbers[-1] += 1
    assert not are_equal(numbers.sum(), (numbers**2).sum(), ranks)


@pytest.mark.parametrize("ranks", RANKS[1:])
@pytest.mark.parametrize("states", [np.array([41]), np.linspace(-1, 1, 64)])
def test_the_state_check_finds_a_rank_with_different_optimizer_states(states, ranks):
    of_ranks = np.array([_facts([states])] * ranks, np.float64)
    assert not _differs(of_ranks)
    of_ranks[-1] = _facts([states + 1])
    assert _differs(of_ranks)


def _differs(of_ranks: np.ndarray) -> bool:
    sums, norms = of_ranks.T
    totals = (np.array([values.sum()]) for values in (sums, sums**2, norms))
    return bool(differing(*totals, len(of_ranks))[0])
