"""A rank that is stopped (SIGSTOP): the others wait with words, then raise, or go on with it.

``FREEZES=40 pytest tests/test_frozen.py -s`` stops so many at random and prints how long the others
took; ``SEED`` picks other moments.
"""

import os
import random
import statistics
import time

import pytest
from jobs import assert_passed, script

FREEZES = int(os.environ.get("FREEZES", "2"))
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
        assert results[rank]["blamed"] == frozen
    assert f"rank {frozen} (process " in job.output and SILENT in job.output
    warned = {line.split("rank ")[1][0] for line in job.output.splitlines() if "Is the pro" in line}
    assert warned == {str(rank) for rank in others}, job.output
    print(results[max(others)]["text"])


def test_when_it_comes_back_in_time_the_job_goes_on():
    job = assert_passed(script(3, "frozen", "0", "0.3", "2", "1000", env=limits("1", "30")))
    assert all(result["longest"] > 1.5 for result in job.results().values())
    assert "rank 0 (process " in job.output and SILENT in job.output


def freeze_at_random(comes_back: bool) -> float:
    """Return the longest wait of another rank, in seconds."""
    ranks, size = random.choice((2, 3, 4)), random.choice((1, 1000, 100_000, 3_000_000))
    frozen = random.choice((0, random.randrange(1, ranks)))
    window = random.choice("01")
    after, long = 0.1 + random.random() / 2, 1.2 if comes_back else 0
    env = {**limits("1", "30" if comes_back else "3"), "HVDLITE_WINDOW": window}
    job = script(ranks, "frozen", str(frozen), f"{after}", f"{long}", str(size), env=env)
    results = job.results()
    others = [results[rank] for rank in range(ranks) if rank != frozen and rank in results]
    assert len(others) == ranks - 1, job.output
    if comes_back:
        assert_passed(job)
        seconds = max(result["longest"] for result in others)
    else:
        assert all(result["blamed"] == frozen for result in others), job.output
        assert f"rank {frozen} (process " in job.output and SILENT in job.output
        seconds = max(result["seconds"] for result in others)
    end = "came back" if comes_back else "errors"
    print(
        f"rank {frozen} of {ranks}, {size} values, window {window}: {end}, waits of {seconds:.2f} s"
    )
    return seconds


@pytest.mark.timeout(60 + 20 * FREEZES)
def test_random_freezes_are_named_or_do_no_harm():
    seed = int(os.environ.get("SEED", time.time()))
    random.seed(seed)
    print(f"\nSEED={seed}")
    waits = [freeze_at_random(comes_back=i % 2 == 0) for i in range(FREEZES)]
    for text, seconds in (("came back", waits[::2]), ("errors", waits[1::2])):
        if seconds:
            median, worst = statistics.median(seconds), max(seconds)
            print(f"{text}: {len(seconds)}, median {median:.2f} s, worst {worst:.2f} s")
