"""Ranks and launchers that are killed or get a signal: waits end, and nothing is left behind."""

import os
import signal

import pytest
from deaths import cases, run
from jobs import NOT_STARTED, TESTS, LauncherFails, assert_passed, mpirun, script, wait_until
from places import results_without, start_ranks

SECONDS = 120  # limit of a job, imports included, long enough for a busy machine


@pytest.mark.parametrize(
    "dead, when, window",
    [
        (0, "while they wait", "1"),
        (2, "while they wait", "0"),
        (0, "later", "0"),
        (2, "later", "1"),
    ],
)
def test_a_killed_rank_is_an_error_on_all_other_ranks(dead, when, window):
    """Neither the other ranks nor shutdown() may wait forever."""
    killed = str(TESTS / "scripts" / "killed.py")
    ended = start_ranks(3, killed, str(dead), when, env={"HVDLITE_WINDOW": window})
    texts = {rank: each["texts"] for rank, each in results_without({dead}, ended).items()}
    assert {rank: len(each) for rank, each in texts.items()} == {1: 3, 2 - dead: 2}
    causes = {text.partition(",")[0] for each in texts.values() for text in each}
    assert len(causes) == 1, causes
    assert causes.pop().startswith(f"rank {dead} (process ")


def test_a_rank_killed_while_it_saves_keeps_the_last_checkpoint(tmp_path):
    saves = str(TESTS / "scripts" / "killed_in_save.py")
    for result in results_without({0}, start_ranks(3, saves, str(tmp_path), "save")).values():
        assert result["begin"] == 0
        assert f"the checkpoint {tmp_path}/00000002 may be unfinished" in result["text"]
        assert ": rank 0 (process " in result["text"]
        assert result["left"] == [".unfinished", "00000001"]
    again = assert_passed(script(2, "killed_in_save", str(tmp_path), "go on"))
    expected = {"begin": 1, "text": "", "left": ["00000002", "00000003"]}
    assert again.results() == {0: expected, 1: expected}


def signal_when_ready(folder, ranks: int, number: int):
    def send(process) -> None:
        assert wait_until(lambda: len(os.listdir(folder)) == ranks, SECONDS), (
            "ranks did not get ready"
        )
        process.send_signal(number)

    return send


WAYS_TO_LIVE_ON = """
import sys, time, numpy as np, hvdlite as hvd
hvd.init()
hvd.numpy.allreduce(np.ones(1))
sys.stdout.write("UP\\n")
sys.stdout.flush()
while True:
    if sys.argv[1] == "train": hvd.numpy.allreduce(np.ones(1000), name="gradient")
    elif sys.argv[1] == "sleep": time.sleep(600)
"""


IN_A_CHILD = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, *sys.argv[1:]]))"


@pytest.mark.xdist_group("hosts")  # so no mpirun starts while another test ends a host
@pytest.mark.parametrize(
    "what, child", [("sleep", False), ("spin", False), ("train", False), ("sleep", True)]
)
def test_ranks_of_a_killed_mpirun_end(what, child):
    """Open MPI's daemon is part of mpirun, so after SIGKILL it can't end its ranks."""

    def kill(process) -> None:
        lines = [process.stdout.readline() for _ in range(2)]
        if NOT_STARTED in lines[1]:
            raise LauncherFails(lines)
        assert lines == ["UP\n", "UP\n"]
        process.kill()  # then mpirun() waits for the ranks, which takes 0.5 s on an idle machine

    words = ["-c", IN_A_CHILD] if child else []
    job = mpirun(2, *words, "-c", WAYS_TO_LIVE_ON, what, while_running=kill)
    assert job.status == -signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_signals_to_the_launcher_end_all_processes(number, tmp_path):
    job = script(
        3, "exits", "wait_to_be_killed", env={"READY": str(tmp_path)},
        while_running=signal_when_ready(tmp_path, 3, number),
    )  # fmt: skip
    assert job.status != 0


FEW = [case for case in cases(seed=7, count=30) if case["when"] != "init"][:14]  # init takes long
SLOW = 10  # extra seconds for a busy machine


@pytest.mark.timeout(120)
@pytest.mark.parametrize("case", FEW, ids=[case["seed"] for case in FEW])
def test_all_waits_end_when_a_rank_dies_at_a_random_moment(case):
    ended = run(case)
    assert not ended.is_late(SLOW), f"{case}\n{ended}\n{ended.trouble}\n{ended.story}"
