"""Timelines, MXNet's profiler, statistics, clock offsets, and queries about the build."""

import ctypes
import json
import os
import time

import mxnet as mx
import numpy as np
import pytest
from mpi4py import MPI
from traces import spans_of

import hvdlite as hvd
from hvdlite.core import topology
from hvdlite.monitor import recorder


@pytest.fixture
def folder(tmp_path) -> str:
    """Return one folder for all ranks."""
    return hvd.broadcast_object(str(tmp_path))


def push(names) -> None:
    for name in names:
        hvd.allreduce_(mx.nd.ones((500,)), name=name)
    mx.nd.waitall()


def events_of(path: str) -> list:
    with open(path) as file:
        return json.load(file)


def spans(path: str) -> dict:
    """Return tensor -> span -> (begin, end) in microseconds; each tensor occurs only once."""
    found = spans_of(events_of(path))
    assert len(dict(found)) == len(found)
    return dict(found)


def test_each_rank_writes_its_own_timeline(folder, rank):
    push(["before"])
    hvd.start_timeline(os.path.join(folder, "of{rank}.json"))
    names = ["first", 'with "quotes" and \\']
    push(names)
    hvd.stop_timeline()
    push(["after"])
    found = spans(os.path.join(folder, f"of{rank}.json"))
    assert set(found) == {f"allreduce.{name}" for name in names}
    for tensor, stretches in found.items():
        assert set(stretches) == {tensor, "negotiate allreduce", "queue", "allreduce"}
        submitted, decided = stretches["negotiate allreduce"]
        started, completed = stretches["allreduce"]
        assert 0 <= submitted <= decided <= started <= completed
        assert stretches["queue"] == (decided, started)
        assert stretches[tensor] == (submitted, completed)


def test_only_rank_0_writes_a_timeline_without_rank_in_its_path(folder, rank):
    path = os.path.join(folder, "one.json")
    hvd.start_timeline(path, mark_cycles=True)
    push(["x"])
    hvd.stop_timeline()
    hvd.stop_timeline()  # a second stop does nothing
    if rank == 0:
        events = events_of(path)
        spans_of(events)
        assert {"process_name", "cycle", "allreduce.x"} <= {event["name"] for event in events}
        assert {event["pid"] for event in events} == {0}


def test_a_forked_child_writes_nothing_to_the_timeline(folder, rank):
    path = os.path.join(folder, f"of{rank}.json")
    hvd.start_timeline(os.path.join(folder, "of{rank}.json"))
    push(["before"])
    child = os.fork()
    if not child:
        ctypes.CDLL(None).fflush(None)  # a child that exits flushes its streams, too
        os._exit(0)
    os.waitpid(child, 0)
    push(["after"])
    hvd.stop_timeline()
    assert set(spans(path)) == {"allreduce.before", "allreduce.after"}


def test_tensors_of_one_name_in_two_process_sets_have_separate_tracks(folder, rank, size):
    """The operations overlap in time: in one track, viewers would combine them wrongly."""
    some = hvd.add_process_set(range(size - 1)) if size > 1 else hvd.global_process_set
    hvd.start_timeline(os.path.join(folder, "of{rank}.json"))
    sets = [hvd.global_process_set] + ([some] if size > 1 and some.included() else [])
    for _ in range(5):
        for name in ("a", "b"):
            for process_set in sets:
                hvd.allreduce_(mx.nd.ones((500,)), name=name, process_set=process_set)
        mx.nd.waitall()
    hvd.stop_timeline()
    found = spans_of(events_of(os.path.join(folder, f"of{rank}.json")))
    names = sorted(name for name, _ in found)
    assert names == sorted(["allreduce.a", "allreduce.b"] * 5 * len(sets))
    if size > 1:
        hvd.remove_process_set(some)


def test_a_second_timeline_and_a_missing_folder_are_errors(folder, rank):
    with pytest.raises(ValueError, match="can't be written: No such file or directory"):
        hvd.start_timeline(os.path.join(folder, "missing", "{rank}"))
    hvd.start_timeline(os.path.join(folder, "{rank}"))
    with pytest.raises(ValueError, match="the timeline is on already"):
        hvd.start_timeline(os.path.join(folder, "other{rank}"))
    hvd.stop_timeline()


def test_stop_timeline_reports_a_full_disk(folder, rank):
    """Every write to /dev/full fails as on a full disk."""
    hvd.start_timeline("/dev/full")
    push([f"lost{i}" for i in range(100)])
    if rank:
        hvd.stop_timeline()  # rank 0 writes the timeline
    else:
        with pytest.raises(ValueError, match="'/dev/full' can't be written: No space left on"):
            hvd.stop_timeline()
    hvd.start_timeline(os.path.join(folder, "next{rank}.json"))
    push(["next"])
    hvd.stop_timeline()
    assert set(spans(os.path.join(folder, f"next{rank}.json"))) == {"allreduce.next"}


def test_mxnets_profiler_records_operations_of_hvdlite(tmp_path, size, asynchronous):
    """MXNet's profiler aborts if an operation's context is cpu(i), and there are only i cores."""
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
def test_a_call_to_profile_servers_warns_if_the_job_has_no_servers(name, monkeypatch):
    """Without hvdlite MXNet says: KVStoreHandle passed to profiler is null."""
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


@pytest.mark.parametrize("hosts", [1, 2, 3])
def test_the_offset_between_hosts_clocks_is_measured(hosts, rank, size, monkeypatch):
    """The clock of simulated host i is 1000 * i seconds ahead."""
    of_rank = [min(i, hosts - 1) for i in range(size)]
    now, own = time.monotonic, of_rank[rank]
    monkeypatch.setattr(recorder.time, "monotonic", lambda: now() + 1000.0 * own)
    offset, error = recorder.offset_to_first(topology.world(), [f"host{i}" for i in of_rank])
    assert (error == 0) == (own == 0)
    assert offset == pytest.approx(-1000.0 * own, abs=error + 1e-9)
    assert error < 5


def test_stats_show_the_share_of_step_time_that_ranks_waited(rank, size):
    for _ in range(8):
        time.sleep(0.05 if rank == size - 1 else 0.01)
        hvd.numpy.allreduce(np.ones(10), name="in each step")
    told = hvd.stats(steps=True)
    assert set(hvd.stats()) < set(told)
    shares = [told[part] for part in ("waiting", "moving", "input", "update")]
    assert all(0 <= share <= 1 for share in shares)
    if size > 1 and rank < size - 1:
        assert told["waiting"] > 0.05  # about 0.8 on an idle machine


def test_queries_about_the_build_mpi_and_hosts_have_right_answers():
    assert hvd.mpi_built() is True and hvd.mpi_enabled() is True
    for ask in ("gloo_built", "gloo_enabled", "ddl_built", "ccl_built", "cuda_built", "rocm_built"):
        assert getattr(hvd, ask)() is False
    assert hvd.nccl_built() == 0  # an int, because scripts compare it with version numbers
    assert hvd.mpi_threads_supported() == (MPI.Query_thread() == MPI.THREAD_MULTIPLE)
    assert len(set(hvd.allgather_object(hvd.mpi_threads_supported()))) == 1
    ranks_of_hosts = set(hvd.allgather_object((hvd.cross_rank(), hvd.local_size())))
    assert hvd.is_homogeneous() == (len({n for _, n in ranks_of_hosts}) == 1)
