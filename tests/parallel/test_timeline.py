"""start_timeline and stop_timeline: a trace of what became of each tensor."""

import ctypes
import json
import os

import mxnet as mx
import pytest
from traces import spans_of

import hvdlite as hvd


@pytest.fixture
def folder(tmp_path) -> str:
    """The same on every rank."""
    return hvd.broadcast_object(str(tmp_path))


def push(names) -> None:
    for name in names:
        hvd.allreduce_(mx.nd.ones((500,)), name=name)
    mx.nd.waitall()


def events_of(path: str) -> list:
    with open(path) as file:
        return json.load(file)


def spans(path: str) -> dict:
    """Tensor -> what -> (begin, end) in microseconds; every name comes once."""
    found = spans_of(events_of(path))
    assert len(dict(found)) == len(found)
    return dict(found)


def test_a_file_for_each_rank(folder, rank):
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


def test_one_file_is_written_by_rank_0(folder, rank):
    path = os.path.join(folder, "one.json")
    hvd.start_timeline(path, mark_cycles=True)
    push(["x"])
    hvd.stop_timeline()
    hvd.stop_timeline()  # nothing more to stop
    if rank == 0:
        events = events_of(path)
        spans_of(events)
        assert {"process_name", "cycle", "allreduce.x"} <= {event["name"] for event in events}
        assert {event["pid"] for event in events} == {0}


def test_a_forked_child_writes_nothing(folder, rank):
    path = os.path.join(folder, f"of{rank}.json")
    hvd.start_timeline(os.path.join(folder, "of{rank}.json"))
    push(["before"])
    child = os.fork()
    if not child:
        ctypes.CDLL(None).fflush(None)  # as its exit does
        os._exit(0)
    os.waitpid(child, 0)
    push(["after"])
    hvd.stop_timeline()
    assert set(spans(path)) == {"allreduce.before", "allreduce.after"}


def test_equal_names_in_two_process_sets_at_once(folder, rank, size):
    """Their spans overlap: in one track viewers took the end of one for that of the other."""
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


def test_twice_and_in_no_folder(folder, rank):
    with pytest.raises(ValueError, match="can't be written: No such file or directory"):
        hvd.start_timeline(os.path.join(folder, "missing", "{rank}"))
    hvd.start_timeline(os.path.join(folder, "{rank}"))
    with pytest.raises(ValueError, match="the timeline is on already"):
        hvd.start_timeline(os.path.join(folder, "other{rank}"))
    hvd.stop_timeline()


def test_a_full_disk_is_told(folder, rank):
    """Every write to /dev/full fails as on a disk that is full; the timeline was lost unsaid."""
    hvd.start_timeline("/dev/full")
    push([f"lost{i}" for i in range(100)])
    if rank:
        hvd.stop_timeline()  # rank 0 writes
    else:
        with pytest.raises(ValueError, match="'/dev/full' can't be written: No space left on"):
            hvd.stop_timeline()
    hvd.start_timeline(os.path.join(folder, "next{rank}.json"))
    push(["next"])
    hvd.stop_timeline()
    assert set(spans(os.path.join(folder, f"next{rank}.json"))) == {"allreduce.next"}
