"""init and shutdown in a process that is alone, each case in an interpreter of its own."""

import pytest
from jobs import alone as run

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


def test_calls_before_init_and_after_shutdown():
    texts = run(
        PRELUDE + "\nprint({error_of(c) for c in asks + works}, hvd.is_initialized())"
        "\nhvd.shutdown()\nhvd.init()\nprint([c() for c in asks], hvd.is_initialized())"
        "\nhvd.shutdown()\nprint({error_of(c) for c in asks + works}, hvd.is_initialized())"
    ).splitlines()
    refused = f"{{'{NOT_INITIALIZED}'}} False"
    assert texts == [refused, "[0, 1, 0, 1, 0, 1] True", refused]


def test_calls_on_mxnet_arrays_before_init_and_after_shutdown():
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
hvd.DistributedTrainer(net.collect_params(), "sgd")  # made before init: that is fine
print({error_of(c) for c in calls})
hvd.init()
[c() for c in calls]
hvd.shutdown()
print({error_of(c) for c in calls})
mx.nd.waitall()
"""
    lines = run(PRELUDE + code).splitlines()
    assert lines == [f"{{'{NOT_INITIALIZED}'}}"] * 2


def test_init_again():
    code = "hvd.init(); hvd.init(); hvd.init([0]); print(hvd.size())"
    assert run(PRELUDE + code) == "1\n"


def test_init_after_shutdown():
    code = """
for step in range(3):
    hvd.init()
    print(hvd.numpy.allreduce(np.full(3, step)).tolist())
    hvd.shutdown()
"""
    assert run(PRELUDE + code).splitlines() == ["[0, 0, 0]", "[1, 1, 1]", "[2, 2, 2]"]


@pytest.mark.parametrize(
    "comm, text",
    [
        ("[1]", "init([1]): expected different ranks from 0 to 0"),
        ("[0, 0]", "init([0, 0]): expected different ranks from 0 to 0"),
        ("[]", "init([]): expected different ranks from 0 to 0"),
        ("[-1]", "init([-1]): expected different ranks from 0 to 0"),
        ("MPI.COMM_NULL", "this process (rank 0) is not in it"),
    ],
)
def test_wrong_communicators(comm, text):
    code = f"from mpi4py import MPI\nprint(error_of(lambda: hvd.init({comm})))"
    output = run(PRELUDE + code + "\nprint(hvd.is_initialized())")
    assert text in output
    assert output.endswith("\nFalse\n")


@pytest.mark.parametrize("comm", ["None", "[0]", "(0,)", "range(1)", "MPI.COMM_SELF"])
def test_right_communicators(comm):
    code = f"from mpi4py import MPI\nhvd.init({comm}); print(hvd.size(), hvd.numpy.allreduce(3.0))"
    assert run(PRELUDE + code) == "1 3.0\n"


@pytest.mark.parametrize("prefix", ["HVDLITE", "HOROVOD"])
@pytest.mark.parametrize(
    "name, value, expected",
    [
        ("FUSION_THRESHOLD", "many", "whole number of at least 0"),
        ("FUSION_THRESHOLD", "-1", "whole number of at least 0"),
        ("CACHE_CAPACITY", "1.5", "whole number of at least 0"),
        ("STALL_CHECK_TIME_SECONDS", "soon", "number of at least 0"),
    ],
)
def test_settings_that_make_no_sense(prefix, name, value, expected):
    output = run(
        PRELUDE + "print(error_of(hvd.init), hvd.is_initialized())", **{f"{prefix}_{name}": value}
    )
    assert f"{prefix}_{name} is '{value}': expected a {expected}" in output
    assert output.endswith(" False\n")


def test_hvdlites_own_spelling_wins():
    code = "hvd.init(); print(hvd.size())"
    env = {"HVDLITE_CACHE_CAPACITY": "2", "HOROVOD_CACHE_CAPACITY": "nonsense"}
    assert run(PRELUDE + code, **env) == "1\n"


WITHOUT_MXNET = "import sys\nsys.modules['mxnet'] = None  # then importing it fails\n"


def test_without_mxnet():
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
    assert "hvdlite's MXNet names need MXNet" in lines[1]
    assert "pip install mxnet==1.9.1" in lines[1]


def test_importing_hvdlite_does_not_import_mxnet():
    assert run("import sys, hvdlite, hvdlite.numpy; print('mxnet' in sys.modules)") == "False\n"


def test_public_names():
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


def test_second_import_of_numpy_module_by_attribute():
    """`hvdlite.numpy` needs no import of its own."""
    assert run("import hvdlite; print(hvdlite.numpy.Sum == hvdlite.Sum)") == "True\n"
