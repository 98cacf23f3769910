"""Jobs that start from the variables of torchrun or Slurm, without MPI."""

import os
import signal
import subprocess
import sys
import time

import cluster as clusters
import pytest
from jobs import MPI_SETTINGS, TESTS, alone, assert_passed, script, wait_until
from places import (
    CARRIERS,
    LIKE_TORCHRUN,
    WITHOUT_MPI,
    free_port,
    init_with,
    on_carrier,
    results,
    start_ranks,
    variables,
)

SCRIPT = str(TESTS / "scripts" / "without_mpi.py")


def ended(size: int, *command: str, **options) -> list:
    return start_ranks(size, SCRIPT, *command, **options)


@pytest.mark.parametrize("size", [1, 4])
def test_jobs_without_mpi_give_the_bits_of_mpi_and_load_no_mpi(size):
    ours = results(ended(size, "bits"))
    theirs = assert_passed(script(size, "without_mpi", "bits")).results()
    assert theirs[0]["mpi"]
    assert {r: values["digest"] for r, values in ours.items()} == {
        r: values["digest"] for r, values in theirs.items()
    }
    for rank in range(size):
        assert not ours[rank]["mpi"] and not ours[rank]["listens"]
        assert (ours[rank]["enabled"], theirs[rank]["enabled"]) == (False, True)
        assert ours[rank]["where"] == theirs[rank]["where"] == [rank, size, 0, 1]


def test_results_have_the_same_bits_with_any_number_of_threads():
    digests = []
    for threads in (1, 2, 3):
        env = {"HVDLITE_THREADS": str(threads), "HVDLITE_THREADS_BYTES": "65536"}
        found = results(ended(2, "bits", env=env))
        assert [found[rank]["helpers"] for rank in range(2)] == [threads - 1] * 2
        digests.append({rank: values["digest"] for rank, values in found.items()})
    assert digests[0] == digests[1] == digests[2]


def test_two_ranks_on_two_cores_have_no_helper_threads():
    cores = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, sorted(cores)[:2])
        found = results(ended(2, "bits", env={"HVDLITE_THREADS_BYTES": "65536"}))
    finally:
        os.sched_setaffinity(0, cores)
    assert [found[rank]["helpers"] for rank in range(2)] == [0, 0]


def test_results_have_the_same_bits_with_and_without_teams():
    found = [results(ended(4, "bits", env={"HVDLITE_TEAM_RANKS": team})) for team in ("1", "2")]
    digests = [{of_rank["digest"] for of_rank in each.values()} for each in found]
    assert digests[0] == digests[1]


def test_a_process_alone_needs_no_mpi():
    code = (
        "import hvdlite as h, numpy as np; h.init(); print(h.size(), h.numpy.allreduce(np.ones(1)))"
    )
    assert alone(code, **{**variables(0, 1, 1), "RANK": ""}) == "1 [1.]\n"


@pytest.mark.parametrize("carrier", CARRIERS)
def test_the_transport_is_logged_once(carrier):
    begin = ["-c", "import hvdlite as hvd; hvd.init()"]
    job = assert_passed(on_carrier(carrier, 2, *begin, env={"HVDLITE_LOG_LEVEL": "info"}))
    assert job.output.count(f"[hvdlite INFO] 2 ranks, transport {carrier}") == 1


@pytest.mark.parametrize("host", ["[::1]", "127.0.0.1"])
def test_waiting_for_a_rank_0_that_does_not_exist_times_out(host):
    """Neither init() nor the exit may wait without end, whether or not the address exists."""
    env = {"HVDLITE_INIT_TIMEOUT_SECONDS": "1", "HVDLITE_EXIT_TIMEOUT_SECONDS": "0"}
    (job,) = ended(2, "bits", ranks=[1], host=host, env=env)
    assert job.status == 1 and "s in init() for rank 0: " in job.output
    assert ("[::1]: [Errno -2]" in job.output) == (host == "[::1]")


def test_the_transport_mpi_is_refused_without_mpi4py():
    (job,) = ended(1, "bits", env={"HVDLITE_TRANSPORT": "mpi"})
    assert job.status == 1 and "hvdlite needs mpi4py on an MPI library" in job.output
    # Python shows one traceback of the ImportError and one of its cause.
    assert job.output.count("Traceback") == 2, job.output


def test_a_communicator_is_refused_in_a_job_without_mpi():
    (job,) = ended(1, "needs_mpi")
    assert results([job])[0]["told"].startswith("init([0]): a communicator needs MPI: ")


WRONG = {
    "HVDLITE_TRANSPORT=udp": "HVDLITE_TRANSPORT is 'udp': expected tcp or mpi",
    "MASTER_PORT=70000": "MASTER_PORT is '70000': expected a port",
    "MASTER_PORT=65535": "MASTER_PORT is 65535, the highest port number, but rank 0 needs",
    "WORLD_SIZE=two": "WORLD_SIZE is 'two': expected a whole number",
    "RANK=2": "torchrun: RANK=2, WORLD_SIZE=2: expected a rank below the number of ranks",
    "JAX_COORDINATOR_ADDRESS=node7": "the PORT of JAX_COORDINATOR_ADDRESS is 'node7': expected a",
    "JAX_COORDINATOR_ADDRESS=[::1]:65535": "the PORT of JAX_COORDINATOR_ADDRESS is 65535, the",
    "JAX_COORDINATOR_ADDRESS=n:9": "JAX: JAX_PROCESS_ID=2, JAX_NUM_PROCESSES=2: expected a rank",
    "HVDLITE_HOST_TIMEOUT_SECONDS=-1": "HVDLITE_HOST_TIMEOUT_SECONDS is '-1': expected a number of",
    "HVDLITE_ELASTIC_TIMEOUT_SECONDS=10m": "HVDLITE_ELASTIC_TIMEOUT_SECONDS is '10m': expected",
    "HVDLITE_SECRET_FILE=/etc/passwd": "HVDLITE_SECRET_FILE is /etc/passwd: other users may read",
    "HVDLITE_SECRET_FILE=/nowhere": "HVDLITE_SECRET_FILE is /nowhere: No such file or directory",
}


def test_the_error_names_a_wrong_environment_variable():
    given = [dict([variable.split("=")]) for variable in WRONG]
    for each in given:
        if "JAX_COORDINATOR_ADDRESS" in each:
            each.update(RANK="", JAX_PROCESS_ID="2", JAX_NUM_PROCESSES="2")
    found = init_with(given, **variables(0, 2, free_port()), HVDLITE_EXIT_TIMEOUT_SECONDS="0")
    for line, told in zip(found, WRONG.values()):
        assert told in line


@pytest.fixture(scope="module")
def hosts():
    with clusters.or_skip(2) as cluster:
        yield cluster


def on(hosts, size: int) -> dict:
    """Return options that distribute the ranks over the hosts in blocks."""
    per_host = size // len(hosts.names)
    names = [hosts.names[rank // per_host] for rank in range(size)]
    return {
        "prefixes": [hosts.command([], name) for name in names],
        "host": hosts.addresses[0],
        "env": {"TMPDIR": str(hosts.disk)},
    }


def test_jobs_without_mpi_run_on_two_hosts(hosts):
    for rank, values in results(ended(4, "bits", **on(hosts, 4))).items():
        assert values["where"] == [rank % 2, 2, rank // 2, 2]
        assert not values["mpi"] and not values["listens"]


def test_a_stopped_rank_or_a_link_down_for_1_second_is_no_lost_host(hosts):
    def disturb(started) -> None:
        assert started[1].stdout.readline() == "READY\n"
        time.sleep(9)
        # the process is nsenter, which passes the signal on to the rank
        started[1].send_signal(signal.SIGCONT)
        hosts.link("h1", up=False)
        time.sleep(1)
        hosts.link("h1", up=True)

    where = on(hosts, 2)
    # after the link is up again, TCP needs up to 1 s to send lost data again
    where["env"]["HVDLITE_HOST_TIMEOUT_SECONDS"] = "8"
    results(jobs := ended(2, "stopped", while_running=disturb, **where))
    assert not any("lost" in job.output for job in jobs)


IMPORTS_LONG = """
import os, sys, time
parent = os.getppid()
sys.stdout.write("READY\\n"); sys.stdout.flush()
while os.getppid() == parent: time.sleep(0.01)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


@pytest.mark.parametrize("first", [[], ["-c", IMPORTS_LONG]], ids=["train", "import"])
def test_ranks_of_a_killed_torchrun_end(first, tmp_path):
    """A killed torchrun can't end its ranks: they end by themselves, even before init()."""
    path = os.pathsep.join([str(TESTS), os.environ["PYTHONPATH"]])
    launcher = subprocess.Popen(
        [sys.executable, LIKE_TORCHRUN, *first, SCRIPT, "waits"],
        env={**os.environ, **MPI_SETTINGS, **WITHOUT_MPI, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    for _ in range(2):
        assert launcher.stdout.readline() == b"READY\n"
    launcher.kill()
    output = launcher.stdout.read()  # read() returns when all ranks have ended
    assert b"launcher" in output  # a rank may report the other rank's end first
    assert wait_until(lambda: launcher.poll() is not None, 60)
