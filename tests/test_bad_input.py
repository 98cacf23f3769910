"""What users are told of settings and of ranks that come late; `pytest -s` prints the texts.

Of bad input they are told what tests/contract/test_refusals.py says.
"""

import pytest
from jobs import assert_passed, script


@pytest.mark.parametrize("tensors", ["named", "unnamed"])
def test_jobs_on_parts_of_the_ranks(tensors):
    job = assert_passed(script(4, "groups", tensors, timeout=30))
    results = job.results()
    assert results[0]["list"] == [1, 2, 2]  # [2, 0]: rank 2 comes first
    assert results[2]["list"] == [0, 2, 2]
    assert "this process is rank 1, which the list leaves out" in results[1]["left out"]
    assert [results[r]["split"] for r in range(4)] == [[1, 2, 2], [1, 2, 4], [0, 2, 2], [0, 2, 4]]
    for rank, seen in results.items():
        assert seen["all"] == seen["freed by its owner"] == [rank, 4, 6]
        assert seen["where"] == [rank, 4, 0, 1]


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


NUMBER = "expected a number of at least 0"


NO_SENSE = {
    "HVDLITE_FUSION_THRESHOLD=huge": "expected a whole number of at least 0",
    "HVDLITE_SEGMENT_BYTES=1000": "expected a number from 1024 to 1073741824",
    "HVDLITE_SEGMENTS_IN_FLIGHT=65": "expected a number from 1 to 64",
    "HVDLITE_BYTES_AHEAD=4MB": "expected a whole number of at least 0",
    "HVDLITE_DETERMINISTIC=yes": "expected 0 or 1",
    "HVDLITE_WINDOW=garbage": "expected 0 or 1",  # it counted as 1
    "HVDLITE_NUDGE=2": "expected 0 or 1",
    "HOROVOD_LOG_LEVEL=loud": "expected trace, debug",  # it was reported as HVDLITE_...
    "HVDLITE_DATA_TIMEOUT_SECONDS=nan": NUMBER,
    "HOROVOD_STALL_CHECK_TIME_SECONDS=inf": NUMBER,
    "HVDLITE_TIMELINE_MARK_CYCLES=yes": "expected 0 or 1",
}


def test_settings_that_make_no_sense_on_one_rank():
    """The others must not wait in init() for the one that has raised there."""
    env = {"HVDLITE_EXIT_TIMEOUT_SECONDS": "1"}
    job = script(3, "init_fails", *NO_SENSE, timeout=40, env=env)
    assert job.status != 0
    results = job.results()
    for setting, text in NO_SENSE.items():
        name, _, value = setting.partition("=")
        assert f"{name} is '{value}': {text}" in results[1][name]
        for rank in (0, 2):
            assert name in results[rank], f"rank {rank} was told nothing of {setting}"
        print({rank: result[name] for rank, result in results.items()})


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "soon"])
def test_time_to_wait_at_exit_that_makes_no_sense(value):
    """With nan a script that had failed waited for ever."""
    job = script(1, "idle", env={"HVDLITE_EXIT_TIMEOUT_SECONDS": value})
    assert job.status != 0
    assert f"HVDLITE_EXIT_TIMEOUT_SECONDS is '{value}': expected a number of" in job.output


def test_window_that_only_some_ranks_want_is_told():
    job = assert_passed(script(2, "one_window"))
    assert [seen["bytes_sent_window"] for seen in job.results().values()] == [0, 0]
    lines = [line for line in job.output.splitlines() if "HVDLITE_WINDOW is 0 on some" in line]
    assert len(lines) == 1, job.output
    assert "everything goes through MPI, which is slower" in lines[0]


def test_a_job_that_is_closed_while_a_group_is_opened():
    """The thread that opened it went on with the memory of the job that the other had freed."""
    env = {"HVDLITE_WINDOW": "0", "MALLOC_PERTURB_": "165"}
    job = assert_passed(script(2, "closed_meanwhile", env=env))
    assert job.results()[0]["text"] == "the job has ended meanwhile"


def test_timeline_of_a_job_on_a_full_disk_is_told():
    job = assert_passed(script(2, "one_window", env={"HVDLITE_TIMELINE": "/dev/full"}))
    assert "the timeline is not whole: its file '/dev/full' can't be written" in job.output
