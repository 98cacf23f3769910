"""Figures beside parity: overlap, idle and waiting ranks, arrays of more than 2^31 bytes, growth.

``pytest -s tests/test_shown.py`` prints the figures. HVDLITE_TEST_IDLE_SECONDS (3) is how long
idle ranks are watched.
"""

import os
import re

import pytest
from jobs import assert_passed, script

IDLE_SECONDS = os.environ.get("HVDLITE_TEST_IDLE_SECONDS", "3")
MOST_IDLE = 0.005  # of a core


def test_idle_ranks_use_no_cpu():
    limit, ranks = 60 + 2 * float(IDLE_SECONDS), 4
    job = assert_passed(script(ranks, "shown", "idle", IDLE_SECONDS, timeout=limit))
    for rank, shares in job.results().items():
        texts = [f"{name} {100 * share:.3f} %" for name, share in shares.items()]
        print(
            f"idle for {IDLE_SECONDS} s, {ranks} ranks: rank {rank}: {', '.join(texts)} of a core"
        )
    for shares in job.results().values():
        assert max(shares.values()) < MOST_IDLE


def test_a_rank_that_waits_for_others_sleeps():
    """Where shared memory tells of every message: looks in between would take training's core."""
    job = assert_passed(script(2, "shown", "waiting", "1"))
    assert job.results().keys() == {0, 1}
    for rank, result in job.results().items():
        print(f"rank {rank}: its engine slept {result['sleeps']} times in a second of waiting")
        assert 1 <= result["sleeps"] <= 10


@pytest.mark.parametrize("nudge", ["1", "0"])
def test_a_rank_that_only_mpi_reaches_is_woken(nudge):
    """MPI can only be polled: a rank that slept noticed a late rank up to 10 ms after it came."""
    rounds = 20
    env = {"HVDLITE_WINDOW": "0", "HVDLITE_NUDGE": nudge}
    job = assert_passed(script(3, "shown", "nudged", str(rounds), env=env))
    for rank, result in job.results().items():
        assert result["right"]
        assert result["threads"] == (nudge == "1")
        if rank < 2:
            assert (result["wakes"] >= rounds) == (nudge == "1")


def starts_of(rank: int, output: str) -> list:
    """When, by the core's log, the rank's engine has started to run gradients."""
    pattern = rf"^\[hvdlite (\S+) trace rank {rank} of \d+\] starts 'allreduce\.net\."
    return [float(seconds) for seconds in re.findall(pattern, output, re.M)]


def head_start(rank: int, times: dict, output: str) -> float:
    """Seconds from the start of the first allreduce until backward comes to the first layer."""
    begin, end = times["backward_begins"], times["last_allreduce_ends"]
    started = [at for at in starts_of(rank, output) if begin < at < end]
    assert started, output
    times["FIRST_ALLREDUCE_STARTS"] = min(started)
    return times["backward_reaches_first_layer"] - min(started)


@pytest.mark.parametrize(
    "bulks", [{}, {"MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_BWD": "2"}], ids=["default", "small bulks"]
)
def test_allreduce_overlaps_with_backward(bulks):
    """The first gradient's allreduce starts before backward has come to the first layer.

    MXNet runs 15 operators in a bulk, whose gradients get ready together; with small bulks the
    first allreduce starts sooner.
    In one step of several: another program on the machine may delay a rank in some.
    """
    job = assert_passed(script(2, "overlap", env={"HVDLITE_LOG_LEVEL": "trace", **bulks}))
    assert job.results().keys() == {0, 1}
    for rank, steps in job.results().items():
        best = max(steps.values(), key=lambda times: head_start(rank, times, job.output))
        for name, at in sorted(best.items(), key=lambda event: event[1]):
            print(f"rank {rank}: {at:.6f} (+{1e3 * (at - best['backward_begins']):6.2f} ms) {name}")
        overlapping = [head_start(rank, times, job.output) > 0 for times in steps.values()]
        print(f"rank {rank}: it does so in {sum(overlapping)} of {len(steps)} steps")
        assert any(overlapping)
        assert best["backward_reaches_first_layer"] < best["backward_ends"]


def available_gib() -> float:
    with open("/proc/meminfo") as file:
        return int(re.search(r"MemAvailable:\s+(\d+)", file.read()).group(1)) / 2**20


@pytest.mark.parametrize("what", ["numpy", "mxnet"])
def test_more_than_2_to_the_31_bytes(what):
    if available_gib() < 14:
        pytest.skip("needs 14 GiB of free memory")
    job = assert_passed(script(2, "shown", "large", what, timeout=150))
    assert job.results().keys() == {0, 1}
    for result in job.results().values():
        assert result["bytes"] > 2**31
        assert result["right"]
        assert result["zeros"]
    print(f"{what}: {result['bytes']} bytes, {job.seconds:.1f} s for the whole job")


@pytest.mark.parametrize("window", ["1", "0"])
def test_a_job_that_lasts_holds_no_more_than_at_the_start(window):
    """``make soak``, for seconds instead of an hour."""
    job = assert_passed(script(2, "soak", "1", env={"HVDLITE_WINDOW": window}))
    assert all(each["rounds"] > 5 for each in job.results().values())
