"""A rank is stopped by SIGSTOP: other ranks warn, then raise an error or go on if it wakes.

``FREEZES=40 pytest tests/test_frozen.py -s`` stops 40 ranks at random and prints how long the other
ranks waited; ``SEED`` selects other moments.
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


def freeze(folder, frozen: int, comes_back: bool, ranks=3, size=1000, window="1", after=0.3):
    """Stop a rank; return the job and the longest wait of another rank in seconds."""
    env = {**limits("1", "120" if comes_back else "5"), "HVDLITE_WINDOW": window}
    long = "4" if comes_back else "0"
    job = script(ranks, "frozen", str(frozen), f"{after}", long, str(size), str(folder), env=env)
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
def test_other_ranks_warn_of_the_stopped_rank_and_raise(frozen, tmp_path):
    """Rank 0 is the coordinator; the other ranks must report it, too, if it is stopped."""
    job, _ = freeze(tmp_path, frozen, comes_back=False)
    warned = {line.split("rank ")[1][0] for line in job.output.splitlines() if "Is the pro" in line}
    assert warned == {str(rank) for rank in {0, 1, 2} - {frozen}}, job.output


@pytest.mark.timeout(60 + 120 * FREEZES)
def test_ranks_stopped_at_random_moments_are_reported_or_do_no_harm(tmp_path):
    seed = int(os.environ.get("SEED", time.time()))
    random.seed(seed)
    print(f"\nSEED={seed}")
    for i in range(FREEZES):
        ranks, size = random.choice((2, 3, 4)), random.choice((1, 1000, 100_000, 3_000_000))
        frozen, window = random.choice((0, random.randrange(1, ranks))), random.choice("01")
        back, after = i % 2 == 0, 0.1 + random.random() / 2
        (folder := tmp_path / str(i)).mkdir()
        _, seconds = freeze(folder, frozen, back, ranks, size, window, after)
        print(f"rank {frozen} of {ranks}, {size} values, window {window}, {back=}: {seconds:.2f} s")


ELASTIC = """if True:
    import os, pathlib, subprocess, sys
    import numpy as np
    import hvdlite as hvd
    from jobs import report
    hvd.init()
    rank, calls, folder = hvd.rank(), [], pathlib.Path(sys.argv[1])
    def note(what):
        (folder / f"{what}.{rank}").touch()
    @hvd.elastic.run
    def train(state):
        calls.append(hvd.size())
        try:
            for step in range(5 if len(calls) > 1 else 10**9):
                hvd.numpy.allreduce(np.ones(1000), name="x")
                state.commit()
                if rank == 1 and not step and len(calls) < 2:
                    come = " && ".join(f"[ -e {folder}/{sys.argv[2]}.{r} ]" for r in (0, 2))
                    wait = f"until {come}; do sleep 0.1; done"
                    command = f"kill -STOP {os.getpid()}; {wait}; kill -CONT {os.getpid()}"
                    subprocess.Popen(["sh", "-c", command])
        except hvd.HvdliteError:
            note("waits")
            raise
    try:
        train(hvd.elastic.ObjectState())
    except hvd.HvdliteError:
        note("ends")
        raise
    report(rank, calls=calls)
"""


def test_an_elastic_rank_that_wakes_in_time_trains_on_with_the_others(tmp_path):
    """The other ranks wait for the stopped rank, and all ranks train on together."""
    found = results(start_ranks(3, "-c", ELASTIC, str(tmp_path), "waits", env=limits("1", "4")))
    assert found == {rank: {"calls": [3, 3]} for rank in range(3)}


def test_a_rank_that_wakes_after_the_job_has_failed_ends_with_an_error(tmp_path):
    """The rank must not take the other ranks for dead and train on alone."""
    env = {**limits("1", "4"), "HVDLITE_ELASTIC_TIMEOUT_SECONDS": "3"}
    jobs = start_ranks(3, "-c", ELASTIC, str(tmp_path), "ends", env=env)
    assert [job.status for job in jobs] == [1, 1, 1], [job.output for job in jobs]
    for job in (jobs[0], jobs[2]):
        cause, _, late = job.output.partition("The above exception was the direct cause")
        assert "rank 1 (process " in cause and "has waited 3 s for the ranks at" in late
    assert "the other ranks have trained on or ended" in jobs[1].output
