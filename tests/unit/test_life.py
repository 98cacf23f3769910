"""init() and shutdown() in a job of one process; each case runs in a new interpreter."""

import socket
import threading

import pytest
from jobs import alone as run

from hvdlite import cli, job
from hvdlite.bootstrap import acceptor
from hvdlite.core import limits

NOT_INITIALIZED = "hvdlite has not been initialized; use hvdlite.init()"


PRELUDE = """
import numpy as np
import hvdlite as hvd
import hvdlite.numpy

def error_of(call):
    try:
        call()
    except ValueError as error:
        return str(error)
    return "no error"

asks = [hvd.rank, hvd.size, hvd.local_rank, hvd.local_size, hvd.cross_rank, hvd.cross_size]
works = [
    hvd.is_homogeneous,
    hvd.mpi_threads_supported,
    lambda: hvd.numpy.allreduce(np.ones(2)),
    lambda: hvd.numpy.allgather(np.ones(2)),
    lambda: hvd.numpy.broadcast(np.ones(2)),
    lambda: hvd.broadcast_object(1),
    lambda: hvd.allgather_object(1),
]
"""


def test_calls_before_init_and_after_shutdown_are_errors():
    texts = run(
        PRELUDE + "\nprint({error_of(c) for c in asks + works}, hvd.is_initialized())"
        "\nhvd.shutdown()\nhvd.init()\nprint([c() for c in asks], hvd.is_initialized())"
        "\nhvd.shutdown()\nprint({error_of(c) for c in asks + works}, hvd.is_initialized())"
    ).splitlines()
    refused = f"{{'{NOT_INITIALIZED}'}} False"
    assert texts == [refused, "[0, 1, 0, 1, 0, 1] True", refused]


def test_calls_on_mxnet_arrays_before_init_and_after_shutdown_are_errors():
    code = """
import mxnet as mx
x = mx.nd.ones(2)
net = mx.gluon.nn.Dense(2, in_units=2)
net.initialize()
calls = [
    lambda: hvd.allreduce(x), lambda: hvd.allreduce_(x), lambda: hvd.broadcast(x, 0),
    lambda: hvd.broadcast_(x, 0), lambda: hvd.allgather(x),
    lambda: hvd.broadcast_parameters(net.collect_params()),
]
hvd.DistributedTrainer(net.collect_params(), "sgd")  # allowed before init()
print({error_of(c) for c in calls})
hvd.init()
[c() for c in calls]
hvd.shutdown()
print({error_of(c) for c in calls})
mx.nd.waitall()
"""
    lines = run(PRELUDE + code).splitlines()
    assert lines == [f"{{'{NOT_INITIALIZED}'}}"] * 2


COMMUNICATORS = """
from mpi4py import MPI
print([error_of(lambda: hvd.init(comm)) for comm in ([1], [0, 0], [], [-1], MPI.COMM_NULL)])
print(hvd.is_initialized())
for comm in (None, [0], (0,), range(1), MPI.COMM_SELF):
    hvd.init(comm)
    print(hvd.size(), hvd.numpy.allreduce(3.0))
    hvd.shutdown()
"""


def test_init_accepts_right_and_refuses_wrong_communicators():
    texts, *others = run(PRELUDE + COMMUNICATORS).splitlines()
    for comm in ("[1]", "[0, 0]", "[]", "[-1]"):
        assert f"init({comm}): expected distinct ranks, each from 0 to 0" in texts
    assert "this process (rank 0) is not in the communicator" in texts
    assert others == ["False", *["1 3.0"] * 5]


WITHOUT_MXNET = "import sys\nsys.modules['mxnet'] = None  # then importing it fails\n"


def test_without_mxnet_numpy_works_and_mxnets_names_raise_importerror():
    code = """
hvd.init()
print(hvd.numpy.allreduce(np.arange(3.0)).tolist(), hvd.broadcast_object({"a": 1}))
try:
    hvd.allreduce
except ImportError as error:
    print(error)
"""
    lines = run(WITHOUT_MXNET + PRELUDE + code).splitlines()
    assert lines[0] == "[0.0, 1.0, 2.0] {'a': 1}"
    assert "hvdlite.mxnet needs MXNet" in lines[1]
    assert "pip install mxnet==1.9.1" in lines[1]


def test_importing_hvdlite_does_not_import_mxnet():
    """``hvdlite.numpy`` needs no separate import."""
    code = "import sys, hvdlite; print(hvdlite.numpy.Sum == hvdlite.Sum, 'mxnet' in sys.modules)"
    assert run(code) == "True False\n"


def test_hvdlite_and_hvdlite_mxnet_have_the_same_public_names():
    code = """
import hvdlite, hvdlite.mxnet
for name in hvdlite.__all__:
    assert getattr(hvdlite, name) is getattr(hvdlite.mxnet, name), name
assert set(hvdlite.__all__) == set(hvdlite.mxnet.__all__)
assert set(hvdlite.__all__) <= set(dir(hvdlite))
try:
    hvdlite.no_such_name
except AttributeError as error:
    print(error)
"""
    assert run(code) == "module 'hvdlite' has no attribute 'no_such_name'\n"


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "soon"])
def test_a_wrong_exit_timeout_is_an_error(value, monkeypatch):
    """With nan, a script that has failed would wait forever."""
    name = "HVDLITE_EXIT_TIMEOUT_SECONDS"
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"{name} is '{value}': expected a number of seconds"):
        limits.limit_of(name)


@pytest.mark.parametrize("name", limits.DEFAULTS)
def test_a_limit_of_many_years_is_shortened_to_what_sockets_accept(name, monkeypatch):
    monkeypatch.setenv(name, "1e300")
    ours, theirs = socket.socketpair()
    listener = socket.create_server(("127.0.0.1", 0))
    with ours, theirs, listener, socket.create_connection(listener.getsockname()) as connection:
        ours.settimeout(limits.limit_of(name))
        acceptor.bound(connection, limits.limit_of(name))
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 2**31 - 1
        assert threading.Lock().acquire(timeout=cli.seconds("1e300"))


@pytest.mark.parametrize(
    "name, expected",
    [("TIMEOUT_SECONDS", "a number of seconds over 0"), ("RESET_LIMIT", "a whole number")],
)
def test_a_wrong_elastic_limit_is_an_error_in_init(name, expected, monkeypatch):
    """init() checks these limits even if only a later death would use them."""
    monkeypatch.setenv(f"HVDLITE_ELASTIC_{name}", "10m")
    with pytest.raises(ValueError, match=f"HVDLITE_ELASTIC_{name} is '10m': expected {expected}"):
        job.init()


def test_a_long_broadcast_reports_its_progress():
    code = """
import threading
from hvdlite.core import progress
told, progress.EVERY = threading.Event(), 0.1
progress.logger.addFilter(lambda line: "1 are done" not in line.getMessage() or not told.set())
hvd.init()
with progress.of_broadcast(0, [4_000_000, 1]):
    hvd.numpy.broadcast(np.ones(2))
    assert told.wait(60)
"""
    assert "broadcast of 2 tensors, 4 MB: 1 are done after " in run(PRELUDE + code)
