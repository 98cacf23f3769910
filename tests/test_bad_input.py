"""What users are told of ranks that come late; `pytest -s` prints the texts."""

import pytest
from jobs import assert_passed, script


def test_a_late_rank_is_named():
    job = assert_passed(script(3, "late", env={"HVDLITE_STALL_CHECK_TIME_SECONDS": "1"}))
    lines = [line for line in job.output.splitlines() if "has waited for" in line]
    print("\n".join(lines))
    assert len(lines) == 2, job.output
    text = next(line for line in lines if "tensor 'allreduce.gradient'" in line)
    assert "submitted by ranks 0, 2, not by rank 1 (rank 1 waits for 'allreduce.something" in text
    assert set(map(str, job.results().values())) == {"{}"}


@pytest.mark.parametrize("prefix", ["HVDLITE", "HOROVOD"])
def test_a_rank_that_is_too_late_fails_the_tensor(prefix):
    env = {f"{prefix}_STALL_CHECK_TIME_SECONDS": "0", f"{prefix}_STALL_SHUTDOWN_TIME_SECONDS": "1"}
    job = script(3, "late", env=env)
    for rank in (0, 2):
        text = job.results()[rank]["gradient"]
        assert "tensor 'allreduce.gradient' has waited for" in text
        assert "submitted by ranks 0, 2, not by rank 1" in text


def test_a_job_that_is_closed_while_a_group_is_opened():
    """The thread that opened it went on with the memory of the job that the other had freed."""
    env = {"HVDLITE_WINDOW": "0", "MALLOC_PERTURB_": "165"}
    job = assert_passed(script(2, "opened_meanwhile", "shuts down", env=env))
    assert job.results()[0]["text"] == "the job has ended meanwhile"


def test_a_group_that_is_closed_while_the_job_ends():
    """It went on with the sockets of the job that another thread had freed."""
    job = assert_passed(script(1, "closed_apart", env={"MALLOC_PERTURB_": "165"}))
    assert job.results()[0]["lives"] == 200


def test_a_job_that_is_left_while_a_group_is_opened():
    """Nobody left the group, for whose end the job waited for ever."""
    job = assert_passed(script(2, "opened_meanwhile", "leaves"))
    assert [result["ended"] for result in job.results().values()] == [1, 1]
