"""A rank that is stopped (SIGSTOP): the others wait with words, then raise, or go on with it.

``FREEZES=40 pytest tests/test_frozen.py -s`` stops so many at random and prints how long the others
took; ``SEED`` picks other moments.
"""

import os
import random
import time

import pytest
from jobs import assert_passed, script
from places import results, start_ranks

FREEZES = int(os.environ.get("FREEZES", "2"))
SILENT = "has not answered for"


def limits(warning: str, data: str) -> dict:
    return {
        "HVDLITE_STALL_CHECK_TIME_SECONDS": warning,
        "HVDLITE_STALL_SHUTDOWN_TIME_SECONDS": "0",
        "HVDLITE_DATA_TIMEOUT_SECONDS": data,
    }


def freeze(ranks: int, frozen: int, comes_back: bool, size=1000, window="1", after=0.3) -> tuple:
    """Return the job, and the longest wait of another rank in seconds."""
    env = {**limits("1", "30" if comes_back else "3"), "HVDLITE_WINDOW": window}
    long = "2" if comes_back else "0"
    job = script(ranks, "frozen", str(frozen), f"{after}", long, str(size), env=env)
    others = [values for rank, values in job.results().items() if rank != frozen]
    assert len(others) == ranks - 1, job.output
    assert f"rank {frozen} (process " in job.output and SILENT in job.output
    if comes_back:
        assert_passed(job)
        return job, max(result["longest"] for result in others)
    assert job.status != 0
    assert all(result["blamed"] == frozen for result in others), job.output
    return job, max(result["seconds"] for result in others)


@pytest.mark.parametrize("frozen", [0, 1])
def test_the_others_name_the_stopped_rank_and_raise(frozen):
    """With rank 0, the coordinator, stopped they waited for ever without a word."""
    job, _ = freeze(3, frozen, comes_back=False)
    warned = {line.split("rank ")[1][0] for line in job.output.splitlines() if "Is the pro" in line}
    assert warned == {str(rank) for rank in {0, 1, 2} - {frozen}}, job.output


@pytest.mark.timeout(60 + 20 * FREEZES)
def test_random_freezes_are_named_or_do_no_harm():
    seed = int(os.environ.get("SEED", time.time()))
    random.seed(seed)
    print(f"\nSEED={seed}")
    for i in range(FREEZES):
        ranks, size = random.choice((2, 3, 4)), random.choice((1, 1000, 100_000, 3_000_000))
        frozen, window = random.choice((0, random.randrange(1, ranks))), random.choice("01")
        back, after = i % 2 == 0, 0.1 + random.random() / 2
        _, seconds = freeze(ranks, frozen, back, size, window, after)
        print(f"rank {frozen} of {ranks}, {size} values, window {window}, {back=}: {seconds:.2f} s")


ELASTIC = """if True:
    import os, subprocess
    import numpy as np
    import hvdlite as hvd
    from jobs import report
    hvd.init()
    rank, calls = hvd.rank(), []
    @hvd.elastic.run
    def train(state):
        calls.append(hvd.size())
        for step in range(5 if len(calls) > 1 else 10**9):
            hvd.numpy.allreduce(np.ones(1000), name="x")
            state.commit()
            if rank == 1 and not step and len(calls) < 2:
                pid = os.getpid()
                subprocess.Popen(["sh", "-c", f"kill -STOP {pid}; sleep 4; kill -CONT {pid}"])
    train(hvd.elastic.ObjectState())
    report(rank, calls=calls)
"""


def test_one_that_wakes_too_late_trains_with_the_others_and_not_alone():
    """The others ended with an error; the rank that woke took them for dead and trained on."""
    env = limits("1", "2")
    found = results(start_ranks(3, "-c", ELASTIC, env=env))
    assert found == {rank: {"calls": [3, 3]} for rank in range(3)}
    env["HVDLITE_ELASTIC_TIMEOUT_SECONDS"] = "0.5"  # too late for that, too
    jobs = start_ranks(3, "-c", ELASTIC, env=env)
    for job in jobs:
        print(job.status, job.output)
    cause, _, late = jobs[0].output.partition("The above exception was the direct cause")
    assert "rank 1 (process " in cause and "has waited 0.5 s for others to go on" in late
