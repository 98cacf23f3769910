"""Run tests/contract and tests/parallel in MPI jobs of 1 to 4 ranks.

All tests run on 1 rank and on 2 or 3 ranks, some on 4 ranks and with other settings. With
HVDLITE_TEST_LONG=1, as in ``make test-long``, all tests run on 1, 2, 3 and 4 ranks.
"""

import json
import os
import sys
from typing import Dict, Optional

import pytest
from jobs import ROOT, assert_passed, mpirun
from places import free_port


def parallel(*names: str) -> list:
    return [f"tests/parallel/test_{name}.py" for name in names]


pytestmark = pytest.mark.timeout(1000)  # each job has a shorter time limit

LONG = os.environ.get("HVDLITE_TEST_LONG") == "1"

CONTRACT = "tests/contract"
ALL = ["tests/parallel", CONTRACT]

# Tests whose results could depend on MXNet's engine, fusion, cache or names.
SHORT = [
    *parallel("order", "optimizer"),
    f"{CONTRACT}/test_refusals.py",
    f"{CONTRACT}/test_verbs.py::test_a_broadcast_gives_all_ranks_the_data_of_the_root",
    f"{CONTRACT}/test_verbs.py::test_an_allgather_joins_the_rows_of_all_ranks",
]

# Tests whose results depend on the number of ranks: tests of algorithms, of process sets, and of
# averages, because a quotient by 3 is rounded.
ON_SEVERAL = [CONTRACT, *parallel(
    "codec", "grouped", "numpy",
    "objects", "optimizer", "order", "process_sets",
    "random_threads", "settings", "sharded", "sharded_stripes", "sharded_weights",
    "sync_batch_norm", "trainer", "zero_copy",
)]  # fmt: skip

# Tests of what 4 ranks do differently from 3: algorithms for powers of two, and two pairs of ranks.
ON_FOUR = [f"{CONTRACT}/test_verbs.py", f"{CONTRACT}/test_shared.py", *parallel(
    "codec", "grouped", "numpy", "process_sets", "random_threads", "sharded_weights",
)]  # fmt: skip

# Tests of algorithms that 2 ranks run otherwise than 3 ranks, and all tests that no job of 3 ranks
# runs (tests of arrays and stores of one rank).
EVERY = {str(file.relative_to(ROOT)) for file in (ROOT / "tests" / "parallel").glob("test_*.py")}
ON_TWO = [*ON_FOUR, f"{CONTRACT}/test_guards.py", *sorted(EVERY - {*ON_SEVERAL})]

# The tests of training that also run over another transport and on another engine of MXNet.
TRAINING = [
    f"tests/parallel/test_trainer.py::test_{name}"
    for name in (
        "changed_rates_and_batch_sizes_give_the_weights_of_one_process",
        "training_from_saved_states_equals_uninterrupted_training",
        "allreduce_grads_gives_averages_or_sums_if_the_script_asks_for_sums",
    )
]

# Tests that also run with messages instead of shared memory, as between hosts.
VERBS = [f"{CONTRACT}/test_verbs.py", f"{CONTRACT}/test_refusals.py"]
BY_MESSAGES = [*VERBS, *parallel("grouped", "numpy")]
CODECS = parallel("codec")

NO_WINDOW = {"HVDLITE_WINDOW": "0"}

# Jobs that vary only the transport use only NumPy arrays; other jobs test MXNet's arrays.
NUMPY_ALONE = {} if LONG else {"CONTRACT_OF": "numpy"}

# Settings that must not change any result of the 3 ranks.
SETTINGS = [
    {"HVDLITE_FUSION_THRESHOLD": "1000", "HVDLITE_CACHE_CAPACITY": "2"},
    {"HVDLITE_DETERMINISTIC": "1", "HVDLITE_WINDOW": "0", "HVDLITE_BYTES_AHEAD": "1"},
    {"HOROVOD_FUSION_THRESHOLD": "0", "HOROVOD_CACHE_CAPACITY": "0"},
]


def passed(ranks: int, *runs: tuple, env: Optional[Dict[str, str]] = None, **options) -> None:
    """Run pytest on `ranks` ranks, once for each pair of variables and arguments."""
    command = ["-m", "test_parallel", *map(json.dumps, runs)]
    # ranks should not wait long for a rank whose run has failed
    env = {"HVDLITE_INIT_TIMEOUT_SECONDS": "60", **(env or {})}
    job = assert_passed(mpirun(ranks, *command, timeout=900, env=env, **options))
    summaries = [line for line in job.output.splitlines() if " passed" in line]
    assert len(summaries) == len(runs), job.output
    for line in job.output.splitlines():
        if "PARITY" in line or line in summaries:
            print(f"{ranks} ranks: {line}")


def test_contract_and_parallel_tests_pass_on_one_rank():
    beside_tests_without_ranks = [f"{CONTRACT}/test_guards.py", "tests/unit/test_verdict.py"]
    passed(1, ({}, ALL), ({}, beside_tests_without_ranks))


def test_contract_and_parallel_tests_pass_on_two_ranks():
    passed(2, ({}, ALL if LONG else ON_TWO), (NO_WINDOW, CODECS), env=NUMPY_ALONE)


def test_contract_and_parallel_tests_pass_on_three_ranks():
    passed(3, ({}, ALL if LONG else ON_SEVERAL), *((setting, SHORT) for setting in SETTINGS))


def test_contract_and_parallel_tests_pass_on_four_ranks():
    passed(4, ({}, ALL if LONG else ON_FOUR), (NO_WINDOW, [*CODECS, *BY_MESSAGES]), env=NUMPY_ALONE)


def test_contract_tests_pass_without_mpi():
    """mpirun starts the ranks, and tests use MPI as barrier, but hvdlite uses rank 0's port."""
    at = {"HVDLITE_TRANSPORT": "tcp", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    at.update(NUMPY_ALONE)
    sets = (
        "a_process_set_knows_its_ranks_and_size",
        "concurrent_allreduces_in_several_process_sets_are_right",
        "join_works_in_a_process_set",
    )
    some = [f"tests/parallel/test_process_sets.py::test_{name}" for name in sets]
    some.append(f"{CONTRACT}/test_prepared.py::test_a_prepared_call_is_prepared_again_in_a_new_job")
    passed(3, ({}, [*parallel("objects"), *TRAINING, *some]), (NO_WINDOW, BY_MESSAGES), env=at)


@pytest.mark.parametrize("engine", ["NaiveEngine", "ThreadedEngine"])
def test_parallel_tests_pass_on_mxnets_other_engines(engine):
    files = [*SHORT, *TRAINING, *parallel("memory", "codec", "kvstore")]
    passed(2, ({}, files), env={"MXNET_ENGINE_TYPE": engine})


def run_each(arguments: list) -> int:
    """Run pytest several times in this rank, because MXNet's import takes longer than most runs.

    Each argument is a JSON list of variables and pytest's arguments. Each run initializes hvdlite.
    """
    import hvdlite as hvd

    for argument in arguments:
        variables, options = json.loads(argument)
        os.environ.update(variables)
        if hvd.is_initialized():
            hvd.shutdown()
        status = pytest.main(["-p", "no:cacheprovider", *options])
        if status:
            sys.stderr.write(f"this run has failed: {argument}\n")
            return status
        for name in variables:
            del os.environ[name]
    return 0


if __name__ == "__main__":
    sys.exit(run_each(sys.argv[1:]))
