"""MXNet's parameter server, with scripts that do not import hvdlite."""

import sys

import pytest
from launching import SCRIPTS, call

SCRIPT = [sys.executable, SCRIPTS / "parameter_server.py"]


@pytest.mark.parametrize("kind", ["dist_sync", "dist_async"])
def test_an_unmodified_script_for_mxnets_servers_runs_to_its_end(kind):
    done = call("-n", 2, "-s", 2, "--mode", "ps", *SCRIPT, kind).passed()
    lines = sorted(line.split(" with loss ")[0] for line in done.out.splitlines())
    assert lines == ["[worker 0] worker 0 of 2 ends", "[worker 1] worker 1 of 2 ends"]


@pytest.mark.parametrize("workers, servers", [(3, 1), (4, 2)])
def test_the_label_of_a_worker_has_its_rank_in_the_kvstore(workers, servers):
    code = (
        "import mxnet as mx; kv = mx.kv.create('dist_sync'); print('rank', kv.rank); kv._barrier()"
    )
    done = call("-n", workers, "-s", servers, sys.executable, "-c", code).passed()
    assert sorted(done.out.splitlines()) == [f"[worker {i}] rank {i}" for i in range(workers)]


@pytest.mark.parametrize("kind", ["dist_sync", "dist_sync_mpi"])
def test_a_script_for_mxnets_servers_runs_on_hvdlites_kvstore(kind):
    """The launcher installs hvdlite's kvstore, though the script does not import hvdlite."""
    done = call("-n", 2, "--mode", "mpi", *SCRIPT, kind).passed()
    lines = sorted(line.split(" with loss ")[0].split("] ")[1] for line in done.out.splitlines())
    assert lines == ["worker 0 of 2 ends", "worker 1 of 2 ends"]


def test_workers_of_a_job_with_servers_are_ranks_of_one_hvdlite_job():
    """A job of all processes over MPI would wait forever for the servers."""
    code = (
        "import mxnet as mx, hvdlite as hvd; kv = mx.kv.create('dist_sync'); hvd.init(); "
        "own = mx.kv.create('dist_sync_mpi'); a = mx.nd.ones(1) * (own.rank + 1); "
        "own.pushpull(0, a); "
        "print(kv.num_workers, own.num_workers, own.rank == kv.rank, a.asscalar())"
    )
    done = call("-n", 2, "-s", 1, sys.executable, "-c", code).passed()
    assert sorted(done.out.splitlines()) == [f"[worker {i}] 2 2 True 3.0" for i in range(2)]


def test_a_python_without_hvdlite_can_be_launched():
    code = "import sys; print('hvdlite' in sys.modules)"
    done = call("-n", 1, sys.executable, "-S", "-c", code)
    assert (done.code, done.out) == (0, "[0] False\n")


def test_a_worker_that_fails_ends_servers_and_workers():
    done = call("-n", 2, "-s", 1, *SCRIPT, "dist_sync", "fail")
    assert done.code == 1
    assert "ValueError: no such thing" in done.err
    assert "hvdliterun: worker " in done.err


def test_env_worker_and_env_server_set_variables_per_role(cluster, on_cluster):
    code = "from os import getenv as e; print(e('DMLC_ROLE'), e('DMLC_NODE_HOST'), e('W'), e('S'))"
    variables = ["--env-worker", "W:1", "--env-server", "S:2"]
    line = ["-n", 2, "-s", 2, "-H", "h0,h1", *variables, sys.executable, "-c", code]
    done = on_cluster(*line)
    assert sorted(done.out.splitlines()) == [
        "[scheduler] scheduler 10.77.0.1 None None",
        "[server 0] server 10.77.0.2 None 2",
        "[server 1] server 10.77.0.1 None 2",
        "[worker 0] worker 10.77.0.2 1 None",
        "[worker 1] worker 10.77.0.1 1 None",
    ]


def test_servers_go_to_hosts_that_have_no_workers(cluster, on_cluster):
    """Otherwise the workers' hosts would get the servers, too, and other hosts would be idle."""
    code = "from os import getenv as e; print(e('DMLC_ROLE'), e('DMLC_NODE_HOST'))"
    done = on_cluster("-n", 1, "-s", 1, "-H", "h0,h1", sys.executable, "-c", code)
    assert sorted(done.out.splitlines()) == [
        "[scheduler] scheduler 10.77.0.1",
        "[server 0] server 10.77.0.2",
        "[worker 0] worker 10.77.0.1",
    ]
