"""Runs tests/parallel in MPI jobs: all of it on 1 to 4 ranks, part of it in other settings."""

import pytest
from jobs import assert_passed, mpirun, rank_commands

# What can differ with MXNet's engine and with fusion, cache and names on.
SHORT = [f"tests/parallel/test_{name}.py" for name in ("moving", "disagree", "order", "optimizer")]

pytestmark = pytest.mark.timeout(1000)  # jobs have their own, shorter ones


def passed(ranks: int, files, **options) -> None:
    job = assert_passed(mpirun(ranks, *rank_commands(files), **options))
    for line in job.output.splitlines():
        if "PARITY" in line or " passed" in line:
            print(f"{ranks} ranks: {line}")


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_all(ranks):
    passed(ranks, ["tests/parallel"], timeout=900)


def test_without_shared_memory():
    """By messages, as between hosts."""
    names = ("allreduce", "grouped", "moving", "numpy", "numpy_out", "operations", "parts")
    files = [f"tests/parallel/test_{name}.py" for name in names]
    passed(3, files, env={"HVDLITE_WINDOW": "0"}, timeout=400)


@pytest.mark.parametrize("engine", ["NaiveEngine", "ThreadedEngine"])
def test_other_engines_of_mxnet(engine):
    others = [
        f"tests/parallel/test_{name}.py" for name in ("memory", "trainer", "codec", "kvstore")
    ]
    files = [*SHORT, *others]
    passed(2, files, env={"MXNET_ENGINE_TYPE": engine}, timeout=400)


@pytest.mark.parametrize("ranks", [2, 4])
def test_compression_through_mpi(ranks):
    files = [f"tests/parallel/test_{name}.py" for name in ("codec", "codec_training")]
    passed(ranks, files, env={"HVDLITE_WINDOW": "0"}, timeout=400)


@pytest.mark.parametrize(
    "setting",
    [
        "HVDLITE_FUSION_THRESHOLD=0",
        "HVDLITE_FUSION_THRESHOLD=1000",
        "HVDLITE_CACHE_CAPACITY=0",
        "HVDLITE_CACHE_CAPACITY=2",
        "HOROVOD_FUSION_THRESHOLD=0 HOROVOD_CACHE_CAPACITY=0",
    ],
)
def test_settings_change_no_result(setting):
    env = dict(pair.split("=") for pair in setting.split())
    passed(3, SHORT, env=env, timeout=400)
