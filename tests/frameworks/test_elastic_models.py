"""Ranks are killed and the training of PyTorch's and Keras's models goes on."""

import pytest
from jobs import assert_passed, script, survives_a_death

pytestmark = pytest.mark.skipif(
    not survives_a_death(), reason="this mpirun ends the job with a rank"
)


@pytest.mark.parametrize("dead, where", [(0, "after backward"), (1, "in backward")])
def test_a_model_is_trained_as_if_the_others_had_gone_on_from_the_commit_alone(dead, where):
    job = script(3, "elastic_torch", str(dead), "5", where, options=["--with-ft", "ulfm"])
    results = assert_passed(job).results()
    assert results.keys() == {0, 1, 2} - {dead}
    # After backward all its gradients may have gone off, so that the others end the step.
    commits = [[0, 4]] if where == "in backward" else [[0, 4], [0, 6]]
    for result in results.values():
        assert result["went_on"] in commits
        assert result["size"] == 2


@pytest.mark.parametrize("backend, dead", [("tensorflow", 0), ("jax", 2)])
def test_keras_fits_as_if_the_others_had_gone_on_from_the_commit_alone(backend, dead):
    """Killed after batch 3 of the second epoch; each second batch is committed.

    On these backends the failure comes out of a graph. Training of 3 processes takes 25 s.
    """
    env = {"KERAS_BACKEND": backend}
    how = {"options": ["--with-ft", "ulfm"], "timeout": 200, "env": env}
    job = script(3, "elastic_keras", str(dead), "7", **how)
    results = assert_passed(job).results()
    left = {0, 1, 2} - {dead}
    assert results == {rank: {"went_on": [[0, 0], [1, 2]], "size": 2} for rank in left}
