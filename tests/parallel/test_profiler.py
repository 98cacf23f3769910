"""MXNet's profiler beside hvdlite."""

import json

import mxnet as mx
import pytest

import hvdlite as hvd

pytestmark = pytest.mark.usefixtures("asynchronous")


def test_a_profiled_job_goes_on_and_its_trace_names_hvdlite(tmp_path, size):
    """The profiler ends the process where an operation is of a CPU above the number of cores."""
    mx.profiler.set_config(profile_all=True, filename=str(tmp_path / "trace.json"))
    mx.profiler.set_state("run")
    arrays = [mx.nd.ones(1000 * i + 1) for i in range(3)]
    for array in arrays:
        hvd.allreduce_(array, op=hvd.Sum)
    mx.nd.waitall()
    mx.profiler.set_state("stop")
    mx.profiler.dump()
    assert [array.asnumpy()[0] for array in arrays] == [size] * 3
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert sum(event.get("name") == "hvdlite" for event in events) >= 2 * len(arrays)


@pytest.mark.parametrize("name", ["dist_sync_mpi", "horovod"])
def test_what_is_meant_for_servers_says_that_there_are_none(name, monkeypatch):
    """MXNet by itself: KVStoreHandle passed to profiler is null."""
    monkeypatch.setattr(mx.profiler, "profiler_kvstore_handle", mx.base.KVStoreHandle())
    mx.kv.create(name)
    for call in (
        lambda: mx.profiler.set_config(filename="x.json", profile_process="server"),
        lambda: mx.profiler.set_state("run", "server"),
        lambda: mx.profiler.pause(profile_process="server"),
        lambda: mx.profiler.resume(profile_process="server"),
        lambda: mx.profiler.dump(True, "server"),
    ):
        with pytest.warns(UserWarning, match="there are no servers to profile"):
            call()
