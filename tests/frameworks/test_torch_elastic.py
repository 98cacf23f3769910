"""Ranks are killed and PyTorch's training goes on."""

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
