"""MXNet's arrays on a GPU are refused before anything is sent.

The tests need no GPU: hvdlite's C code asks a fake library, which says that each array is on gpu(1)
and passes all other calls to MXNet.
"""

import subprocess
import sys

import pytest

pytest.importorskip("mxnet")

FAKE = "int MXNDArrayGetContext(void *a, int *type, int *id) { return *type = 2, *id = 1, 0; }"
SCRIPT = """
import ctypes, subprocess, sys
import mxnet as mx
fake, library = sys.argv[1], mx.libinfo.find_lib_path()[0]
gcc = ["gcc", "-shared", "-fPIC", "-Wl,--no-as-needed", "-xc", "-", "-o", fake, "-xnone", library]
subprocess.run(gcc, input=sys.argv[2], text=True, check=True)
ctypes.CDLL(fake)
mx.libinfo.find_lib_path = lambda: [fake]
import hvdlite.mxnet as hvd
hvd.init()
x, net = mx.nd.ones(3), mx.gluon.nn.Dense(1, in_units=2)
net.initialize()
calls = [
    lambda: hvd.allreduce(x, name="x"), lambda: hvd.allreduce_(x, name="x"),
    lambda: hvd.grouped_allreduce([x, x], name="x"), lambda: hvd.broadcast(x, 0, name="x"),
    lambda: hvd.allgather(x, name="x"), lambda: hvd.broadcast_parameters(net.collect_params()),
]
for call in calls:
    try:
        call()
        mx.nd.waitall()
    except hvd.HvdliteError as error:
        print("REFUSED", error)
"""


def test_mxnets_arrays_on_a_gpu_are_refused(tmp_path):
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "fake.so"), FAKE]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100)
    refused = [line for line in ended.stdout.splitlines() if line.startswith("REFUSED tensor '")]
    assert len(refused) == 6, ended.stdout + ended.stderr
    for line in refused:
        assert "is on gpu(1): expected an array on a CPU" in line
        assert "copy it with as_in_context(mx.cpu())" in line
