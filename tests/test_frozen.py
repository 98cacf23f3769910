"""A rank that is stopped (SIGSTOP): the others wait with words, then raise, or go on with it."""

import pytest
from jobs import assert_passed, script

SILENT = "has not answered for"


def limits(warning: str, data: str) -> dict:
    return {
        "HVDLITE_STALL_CHECK_TIME_SECONDS": warning,
        "HVDLITE_STALL_SHUTDOWN_TIME_SECONDS": "0",
        "HVDLITE_DATA_TIMEOUT_SECONDS": data,
    }


@pytest.mark.parametrize("frozen", [0, 1])
def test_the_others_name_the_stopped_rank_and_raise(frozen):
    """With rank 0, the coordinator, stopped they waited for ever without a word."""
    job = script(3, "frozen", str(frozen), "0.3", "0", "1000", env=limits("1", "3"))
    others = {0, 1, 2} - {frozen}
    results = job.results()
    assert job.status != 0
    assert others <= results.keys(), job.output
    for rank in others:
        assert f"rank {frozen} " in results[rank]["text"]
    assert f"rank {frozen} (process " in job.output and SILENT in job.output
    warned = {line.split("rank ")[1][0] for line in job.output.splitlines() if "Is the pro" in line}
    assert warned == {str(rank) for rank in others}, job.output
    print(results[max(others)]["text"])


def test_when_it_comes_back_in_time_the_job_goes_on():
    job = assert_passed(script(3, "frozen", "0", "0.3", "2", "1000", env=limits("1", "30")))
    assert all(result["longest"] > 1.5 for result in job.results().values())
    assert "rank 0 (process " in job.output and SILENT in job.output
