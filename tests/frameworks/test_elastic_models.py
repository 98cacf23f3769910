"""Ranks are killed and the training of PyTorch's and Keras's models goes on."""

import pytest
from jobs import TESTS
from places import results_without, start_ranks

TORCH, KERAS = (str(TESTS / "scripts" / f"elastic_{name}.py") for name in ("torch", "keras"))


@pytest.mark.parametrize("dead, where", [(0, "after backward"), (1, "in backward")])
def test_a_model_is_trained_as_if_the_others_had_gone_on_from_the_commit_alone(dead, where):
    results = results_without({dead}, start_ranks(3, TORCH, str(dead), "5", where))
    # After backward all its gradients may have gone off, so that the others end the step.
    commits = [[0, 4]] if where == "in backward" else [[0, 4], [0, 6]]
    for result in results.values():
        assert result["went_on"] in commits
        assert result["size"] == 2


@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend, dead", [("tensorflow", 0), ("jax", 2)])
def test_keras_fits_as_if_the_others_had_gone_on_from_the_commit_alone(backend, dead):
    """Killed after batch 3 of the second epoch; each second batch is committed.

    On these backends the failure comes out of a graph. Training of 3 processes takes 25 s.
    """
    ended = start_ranks(3, KERAS, str(dead), "7", timeout=500, env={"KERAS_BACKEND": backend})
    for result in results_without({dead}, ended).values():
        assert result == {"went_on": [[0, 0], [1, 2]], "size": 2}
