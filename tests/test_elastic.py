"""Ranks are killed and training goes on: from the last commit, with the right bits.

``KILLS=200 pytest tests/test_elastic.py -s`` kills so many at random and prints how long each took.
``SEED`` picks other moments, ``KILLS_FROM="before init"`` earlier ones. These are not the default:
Open MPI 5.0.11 may end a process by SIGSEGV if it hears of a death while it makes a communicator.
"""

import contextlib
import itertools
import os
import random
import signal
import threading
import time

import pytest
from jobs import assert_passed, script, wait_until
from kills import kill_many, wanted
from test_exit import survives_a_death

KILLS_FROM = os.environ.get("KILLS_FROM", "after init")
KILLS = wanted(6)
SECONDS = 40  # for a job on a busy machine; one that hangs takes for ever
FAULT_TOLERANT = ["--with-ft", "ulfm"]

pytestmark = pytest.mark.skipif(
    not survives_a_death(), reason="this mpirun ends the job with a rank"
)


@pytest.mark.parametrize("dead", ["0", "2", "1,2", "0,1"])
def test_the_others_go_on_from_the_last_commit(dead):
    job = assert_passed(script(4, "elastic_numpy", dead, "5", "12", options=FAULT_TOLERANT))
    dying = {int(rank) for rank in dead.split(",")}
    left = 4 - len(dying)
    results = job.results()
    assert results.keys() == set(range(4)) - dying
    ends = [sorted(set(range(4)) - dying).index(rank) for rank in (0, 3) if rank not in dying]
    for result in results.values():
        # One may die in the step after the other one's.
        assert (result["sizes"][:5], result["sizes"][7:]) == ([4] * 5, [left] * 5)
        assert result["resets"][-1] == result["size"] == left
        assert result["pair"] == ends


def test_the_others_go_on_when_a_script_has_ended_well():
    """They failed in the middle of training, and the job's exit code was 0."""
    job = script(3, "elastic_numpy", "1", "5", "12", options=FAULT_TOLERANT, env={"EXITS": "1"})
    assert {rank: each["size"] for rank, each in job.results().items()} == {0: 2, 2: 2}, job.output


@pytest.mark.parametrize(
    "trainer, dead",
    [("DistributedTrainer", 0), ("DistributedTrainer", 1), ("ShardedTrainer", 0), ("optimizer", 1)],
)
def test_a_net_is_trained_as_if_the_others_had_gone_on_from_the_commit_alone(trainer, dead):
    job = script(3, "elastic_gluon", str(dead), "5", trainer, options=FAULT_TOLERANT)
    results = assert_passed(job).results()
    assert results.keys() == {0, 1, 2} - {dead}
    for result in results.values():
        assert result["went_on"] == [0, 4]
        assert result["size"] == 2


class Killer(threading.Thread):
    """Kills so many ranks of a job at random moments, some of them together."""

    def __init__(self, folder, ranks: int, kills: int) -> None:
        super().__init__()
        self._folder, self._ranks, self._kills = folder, ranks, kills
        self.times = []  # of kills

    def run(self) -> None:
        up = wait_until(lambda: len(os.listdir(self._folder)) == self._ranks, SECONDS)
        pids = random.sample(os.listdir(self._folder), self._kills) if up else []
        for pid in pids:
            time.sleep(random.choice((0, 0.002, 0.02, 0.1, 0.3, 1)) * random.random())
            with contextlib.suppress(ProcessLookupError):  # it had ended
                os.kill(int(pid), signal.SIGKILL)
                self.times.append(time.time())


def kill_at_random(folder, ranks: int, kills: int) -> list:
    """Return for each kill the seconds until those left had ended a step of training."""
    folder.mkdir()
    killer = Killer(folder, ranks, kills)
    job = script(
        ranks, "elastic_numpy", "-", "0", "300", options=FAULT_TOLERANT, timeout=SECONDS,
        env={"PIDS": str(folder), "KILLS_FROM": KILLS_FROM, "HVDLITE_ELASTIC": "1"},
        while_running=lambda _: killer.ident or killer.start(),
    )  # fmt: skip
    killer.join()
    crashes = job.output.count("Signal: Segmentation fault")  # in MPI: more deaths
    if crashes:
        print(f"{crashes} ended by SIGSEGV in MPI")
    else:
        assert_passed(job)
    assert len(job.results()) >= ranks - kills - crashes, job.output
    went_on = [float(line.split()[0]) for line in job.lines("WENT ON ")]
    later = [[t - moment for t in went_on if t > moment] for moment in killer.times]
    return [min(each) for each in later if each]


@pytest.mark.timeout(60 + SECONDS * KILLS)
def test_random_kills_lose_no_commit_hang_nothing_and_leave_the_right_bits(tmp_path):
    folders = (tmp_path / str(n) for n in itertools.count())
    sizes = {f"{ranks} ranks": ranks for ranks in (2, 3, 4)}

    def job(where: str, kills: int) -> list:
        return kill_at_random(next(folders), sizes[where], kills)

    kill_many(sizes, job, KILLS)
