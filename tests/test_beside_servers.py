"""Jobs that MXNet's launcher starts, with a scheduler and servers in addition to the workers."""

import argparse
import os
import subprocess
import sys

import pytest
from jobs import TESTS, alone, assert_passed, mpirun
from places import free_port
from versions import mxnet_alone

LAUNCHER = [sys.executable, __file__]
SUM = """
kv = mx.kv.create("dist_sync_mpi")
a = mx.nd.ones(2) * (kv.rank + 1)
kv.pushpull("a", a)
from jobs import report
report(kv.rank, workers=kv.num_workers, sum=a.asnumpy().tolist())
"""


def beside_servers(workers: int, code: str, *options: str, **more):
    return mpirun(workers, "-c", code, options=options, launcher=LAUNCHER, **more)


INITS_FIRST = "import hvdlite; hvdlite.init(); import mxnet as mx"  # a server never leaves init()
NUMBERED = ("--numbered", "--servers=2")


@pytest.mark.parametrize(
    "imports, options",
    [
        pytest.param("import mxnet as mx, hvdlite", (), marks=mxnet_alone),
        ("import hvdlite, mxnet as mx", NUMBERED),
        (INITS_FIRST, ()),
        (INITS_FIRST, NUMBERED),
    ],
)
def test_workers_form_one_job_and_servers_end_with_the_job(imports, options):
    """Otherwise each worker would train alone, and the servers would wait forever."""
    workers = 2 + len(options) // 2
    job = assert_passed(beside_servers(workers, f"{imports}\n{SUM}", *options))
    total = float(sum(range(workers + 1)))
    each = {"workers": workers, "sum": [total, total]}
    assert job.results() == dict.fromkeys(range(workers), each)


FAIL = """
import mxnet as mx, hvdlite, sys
kv = mx.kv.create("dist_sync_mpi")
if kv.rank == 1: raise ValueError("no such file")
a = mx.nd.ones(2)
kv.pushpull("a", a)
mx.nd.waitall()
"""


def test_a_worker_that_fails_ends_servers_and_workers():
    job = beside_servers(2, FAIL)
    assert "rank 1 left the job (its script raised ValueError: no such file)" in job.output
    assert job.lines("ENDS ") == ["['scheduler 0', 'server 0', 'worker 1', 'worker 1']"]


BEGIN = """
import os, hvdlite as hvd
from jobs import report
try: hvd.init()
except hvd.HvdliteError as error: report(os.getpid(), refused=str(error))
"""


def test_init_after_making_a_store_of_servers_is_refused():
    """A process can have only one store of servers; a second store would wait forever."""
    own = "import mxnet as mx\nkv = mx.kv.create('dist_sync')"
    refused = assert_passed(beside_servers(2, own + BEGIN)).results().values()
    assert len(refused) == 2
    for each in refused:
        assert "'dist_sync' of MXNet's servers and hvdlite's ranks" in each["refused"]
        assert "`hvdliterun -n 2 -s 1 python train.py`" in each["refused"]


NOBODY = {  # at this address there is no scheduler, server or other worker
    "DMLC_ROLE": "worker",
    "DMLC_PS_ROOT_URI": "127.0.0.1",
    "DMLC_NUM_WORKER": "2",
    "HVDLITE_INIT_TIMEOUT_SECONDS": "1",
}


@pytest.mark.parametrize(
    "servers, told",
    [
        ("0", ["there is no server (DMLC_NUM_SERVER=0)"]),
        (
            "1",
            [
                "init() waits for the 2 workers and 1 servers that MXNet's scheduler at 127.0.0.1",
                "The scheduler is not there ([Errno 111] Connection refused)",
            ],
        ),
    ],
)
def test_waiting_for_workers_that_never_come_times_out(servers, told):
    port = {"DMLC_PS_ROOT_PORT": str(free_port()), "DMLC_NUM_SERVER": servers}
    said = alone(BEGIN, **NOBODY, **port, PYTHONPATH=str(TESTS))
    assert all(each in said for each in told), said


def launch() -> int:
    """Start a scheduler, servers and workers of MXNet, as launch.py does, and wait for all of them.

    launch.py numbers the workers that it starts on one host (--numbered), but not those over ssh.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--numbered", action="store_true")
    parser.add_argument("-n", type=int)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()

    environ = {
        **os.environ,
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
        "DMLC_NUM_WORKER": str(args.n),
        "DMLC_NUM_SERVER": str(args.servers),
    }
    roles = ["scheduler", *["server"] * args.servers, *["worker"] * args.n]
    started = []
    for index, role in enumerate(roles):
        own = {"DMLC_TASK_ID": str(index)} if args.numbered else {}
        started.append(subprocess.Popen(args.command, env={**environ, **own, "DMLC_ROLE": role}))
    ends = [(role, process.wait()) for role, process in zip(roles, started)]
    print("ENDS", sorted(f"{role} {code}" for role, code in ends), flush=True)
    return max(code for _, code in ends)


if __name__ == "__main__":
    sys.exit(launch())
