"""CPU use of idle and waiting ranks, arrays of more than 2^31 bytes, and growth of memory.

``pytest -s tests/test_shown.py`` prints the figures. HVDLITE_TEST_IDLE_SECONDS (default 3) sets how
long idle ranks are measured.
"""

import os
import re

import pytest
from jobs import assert_passed, script

IDLE_SECONDS = os.environ.get("HVDLITE_TEST_IDLE_SECONDS", "3")
MOST_IDLE = 0.005  # the largest share of a core that an idle rank may use


def test_idle_ranks_use_no_cpu():
    limit, ranks = 120 + 2 * float(IDLE_SECONDS), 4
    job = assert_passed(script(ranks, "shown", "idle", IDLE_SECONDS, timeout=limit))
    for rank, shares in job.results().items():
        texts = [f"{name} {100 * share:.3f} %" for name, share in shares.items()]
        print(
            f"idle for {IDLE_SECONDS} s, {ranks} ranks: rank {rank}: {', '.join(texts)} of a core"
        )
    for shares in job.results().values():
        assert max(shares.values()) < MOST_IDLE


def test_a_rank_that_waits_long_sleeps():
    """Shared memory wakes the rank at every message; polling in between would use a core."""
    job = assert_passed(script(2, "shown", "waiting", "2"))
    assert job.results().keys() == {0, 1}
    for rank, result in job.results().items():
        print(f"rank {rank}: its engine slept {result['sleeps']} times in 2 s of waiting")
        assert 1 <= result["sleeps"] <= 200  # polling every millisecond makes 2000


@pytest.mark.parametrize("nudge", ["1", "0"])
def test_hvdlite_nudge_wakes_a_rank_that_has_only_mpi_connections(nudge):
    """A nudge is a datagram. Without nudges, a sleeping rank polls MPI only every 10 ms."""
    rounds = 40
    env = {"HVDLITE_WINDOW": "0", "HVDLITE_NUDGE": nudge}
    job = assert_passed(script(3, "shown", "nudged", str(rounds), env=env))
    for rank, result in job.results().items():
        assert result["right"]
        assert result["threads"] == (nudge == "1")
        if rank < 2:
            # in the other rounds this rank may come after rank 2, and needs no datagram
            assert (result["wakes"] >= rounds / 4) == (nudge == "1")


def available_gib() -> float:
    with open("/proc/meminfo") as file:
        return int(re.search(r"MemAvailable:\s+(\d+)", file.read()).group(1)) / 2**20


@pytest.mark.parametrize("what", ["numpy", "mxnet"])
def test_an_array_of_more_than_2_to_the_31_bytes_is_reduced(what):
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
def test_a_long_job_uses_no_more_memory_than_at_the_start(window):
    """This is ``make soak`` for a second instead of an hour."""
    job = assert_passed(script(2, "soak", "1", env={"HVDLITE_WINDOW": window}))
    assert all(each["rounds"] > 5 for each in job.results().values())
