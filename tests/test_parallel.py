"""Runs tests/parallel in MPI jobs: all of it on 1 to 3 ranks, part on 4 and in other settings.

HVDLITE_TEST_LONG=1 runs all of it on 4 ranks, too: ``make test-long``.
"""

import os

import pytest
from jobs import assert_passed, mpirun, rank_commands


def parallel(*names: str) -> list:
    return [f"tests/parallel/test_{name}.py" for name in names]


# What can differ with MXNet's engine and with fusion, cache and names on.
SHORT = parallel("moving", "disagree", "order", "optimizer")

pytestmark = pytest.mark.timeout(1000)  # jobs have their own, shorter ones


def passed(ranks: int, files, **options) -> None:
    job = assert_passed(mpirun(ranks, *rank_commands(files), **options))
    for line in job.output.splitlines():
        if "PARITY" in line or " passed" in line:
            print(f"{ranks} ranks: {line}")


# What depends on the number of ranks: the algorithms, what they move, who takes part. The others
# are about one rank's arrays, trainers and stores; 1, 2 and 3 ranks show what several do to them.
ON_FOUR = parallel(
    "allreduce", "codec", "compression", "disagree", "grouped", "join", "moving", "numpy",
    "numpy_out", "objects", "operations", "order", "parts", "process_sets", "random_programs",
    "sharded", "sharded_weights", "trainer", "zero_copy",
)  # fmt: skip


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_all(ranks):
    passed(ranks, ["tests/parallel"], timeout=900)


def test_on_four_ranks():
    everything = os.environ.get("HVDLITE_TEST_LONG") == "1"
    passed(4, ["tests/parallel"] if everything else ON_FOUR, timeout=900)


def test_without_shared_memory():
    """By messages, as between hosts."""
    files = parallel("allreduce", "grouped", "moving", "numpy", "numpy_out", "operations", "parts")
    passed(3, files, env={"HVDLITE_WINDOW": "0"}, timeout=400)


@pytest.mark.parametrize("engine", ["NaiveEngine", "ThreadedEngine"])
def test_other_engines_of_mxnet(engine):
    files = [*SHORT, *parallel("memory", "trainer", "codec", "kvstore")]
    passed(2, files, env={"MXNET_ENGINE_TYPE": engine}, timeout=400)


@pytest.mark.parametrize("ranks", [2, 4])
def test_compression_through_mpi(ranks):
    passed(ranks, parallel("codec", "codec_training"), env={"HVDLITE_WINDOW": "0"}, timeout=400)


@pytest.mark.parametrize(
    "setting",
    [
        "HVDLITE_FUSION_THRESHOLD=1000",
        "HVDLITE_CACHE_CAPACITY=2",
        "HVDLITE_BYTES_AHEAD=1",
        "HVDLITE_DETERMINISTIC=1 HVDLITE_WINDOW=0",
        "HOROVOD_FUSION_THRESHOLD=0 HOROVOD_CACHE_CAPACITY=0",
    ],
)
def test_settings_change_no_result(setting):
    env = dict(pair.split("=") for pair in setting.split())
    passed(3, SHORT, env=env, timeout=400)
