"""Ranks are killed, and training goes on from the last commit with the right bits.

``KILLS=200 pytest tests/test_elastic.py -s`` kills 200 ranks at random moments, and prints how
long each recovery took. ``SEED`` selects other moments.
"""

import contextlib
import itertools
import os
import random
import signal
import threading
import time

import pytest
from jobs import TESTS, alone, kill_many, kills_wanted, mpirun, wait_until
from places import results_without, start_ranks

KILLS = kills_wanted(6)
SECONDS = 120  # limit of a job, long enough for a busy machine
NUMPY, MODELS = (str(TESTS / "scripts" / f"elastic_{name}.py") for name in ("numpy", "models"))


def assert_went_on(ended, dead) -> None:
    """Check that the remaining ranks trained on and that a process set has their new numbers."""
    found, size = results_without(dead, ended), len(ended)
    ends = [sorted(found).index(rank) for rank in (0, size - 1) if rank in found]
    for result in found.values():
        # The sizes of steps 4 to 6 vary: one of two killed ranks may die a step later; or a rank
        # outside of the process set dies while the set is in the previous step, which repeats.
        assert (result["sizes"][:4], result["sizes"][7:]) == ([size] * 4, [len(found)] * 5)
        assert result["resets"][-1] == result["size"] == len(found)
        assert result["pair"] == ends


@pytest.mark.parametrize("dead", ["0", "2", "1,2", "0,1"])
def test_survivors_go_on_from_the_last_commit(dead):
    assert_went_on(start_ranks(4, NUMPY, dead, "5", "12"), set(map(int, dead.split(","))))


def test_other_ranks_go_on_when_the_script_of_a_rank_has_ended():
    """Otherwise the other ranks would fail during training, and the job's exit code would be 0."""
    found = results_without({1}, start_ranks(3, NUMPY, "1", "5", "12", env={"EXITS": "1"}))
    assert {rank: each["size"] for rank, each in found.items()} == {0: 2, 2: 2}


@pytest.mark.parametrize(
    "trainer, dead",
    [("DistributedTrainer", 0), ("ShardedTrainer", 0), ("optimizer", 1)],
)
def test_survivors_continue_to_train_gluon_from_the_last_commit(trainer, dead):
    ended = start_ranks(3, MODELS, "gluon", str(dead), "5", trainer)
    one, other = results_without({dead}, ended).values()
    # A dead rank that has sent all gradients lets the other ranks complete its last step.
    commits = [[0, 4], [0, 6]] if trainer == "DistributedTrainer" else [[0, 4]]
    assert one == other and one["went_on"] in commits and one["size"] == 2


RUNS = """if True:
    import hvdlite as hvd
    hvd.init()
    print(hvd.elastic.run(lambda state: "TRAINED")(hvd.elastic.ObjectState()))
"""


@pytest.mark.parametrize("env", [{}, {"HVDLITE_ELASTIC": "1"}], ids=["run", "init"])
def test_the_error_of_elastic_training_over_mpi_names_the_right_command(env):
    job = mpirun(2, "-c", RUNS, env=env)
    assert job.status != 0 and "TRAINED" not in job.output
    assert (
        "elastic training does not run over MPI, which has started this process: start the job by "
        "`hvdliterun --elastic -n 2 python train.py`"
    ) in job.output


def test_a_process_without_a_launcher_trains_alone():
    assert alone(RUNS) == "TRAINED\n"


class Killer(threading.Thread):
    """Kill `kills` ranks of a job at random moments, some of them together."""

    def __init__(self, folder, ranks: int, kills: int) -> None:
        super().__init__()
        self._folder, self._ranks, self._kills = folder, ranks, kills
        self.times = []  # moments at which ranks were killed

    def run(self) -> None:
        up = wait_until(lambda: len(os.listdir(self._folder)) == self._ranks, SECONDS)
        pids = random.sample(os.listdir(self._folder), self._kills) if up else []
        for pid in pids:
            time.sleep(random.choice((0, 0.002, 0.02, 0.1, 0.3, 1)) * random.random())
            with contextlib.suppress(ProcessLookupError):  # the rank has already ended
                os.kill(int(pid), signal.SIGKILL)
                self.times.append(time.time())


def kill_at_random(folder, ranks: int, kills: int) -> list:
    """Return, for each kill, the seconds until a surviving rank completed a training step."""
    folder.mkdir()
    killer = Killer(folder, ranks, kills)
    ended = start_ranks(
        ranks, NUMPY, "-", "0", "300", timeout=SECONDS,
        env={"PIDS": str(folder), "HVDLITE_ELASTIC": "1"},
        while_running=lambda _: killer.start(),
    )  # fmt: skip
    killer.join()
    killed = {rank for rank, job in enumerate(ended) if job.status == -signal.SIGKILL}
    assert len(killed) <= kills
    results_without(killed, ended)
    went_on = [float(line.split()[0]) for job in ended for line in job.lines("WENT ON ")]
    later = [[t - moment for t in went_on if t > moment] for moment in killer.times]
    return [min(each) for each in later if each]


@pytest.mark.timeout(60 + SECONDS * KILLS)
def test_random_kills_lose_no_commit_and_cause_no_hang(tmp_path):
    folders = (tmp_path / str(n) for n in itertools.count())
    sizes = {f"{ranks} ranks": ranks for ranks in (2, 3, 4)}

    def job(where: str, kills: int) -> list:
        return kill_at_random(next(folders), sizes[where], kills)

    kill_many(sizes, job, KILLS)
