"""torch.distributed over hvdlite between two ranks: send, recv, the monitored barrier."""

import datetime
import json
import os
import time

import pytest
import torch
import torch.distributed as dist
from traces import spans_of

import hvdlite.torch as hvd
from hvdlite.monitor import live, memory, report


def test_messages_with_one_tag_arrive_in_order(groups, several):
    """Messages of a tag keep their order, whatever other tags, sizes, strides and sources occur."""
    rank, size, group = dist.get_rank(), dist.get_world_size(), groups[0]
    after, before, lengths = (rank + 1) % size, (rank - 1) % size, (3, 0, 500_000, 40_000)
    works = [
        dist.isend(torch.full((n, 2), rank * 10 + tag + 0.0)[:, 0], after, group, tag)
        for n in lengths
        for tag in (2, 1)
    ]
    for tag in (1, 2):
        for n in lengths:
            t = torch.zeros(n, 2)
            dist.recv(t[:, 1], before, group, tag)
            assert (t[:, 1] == before * 10 + tag).all() and not t[:, 0].any()
    assert all(work.wait() for work in works)
    if rank == 0:
        came = [dist.recv(t := torch.zeros(9), group=group, tag=7) for _ in range(size - 1)]
        assert sorted(came) == list(range(1, size)) and (t == came[-1]).all()
    else:
        dist.send(torch.full((9,), float(rank)), 0, group, 7)


def test_mismatched_sends_and_receives_are_errors_on_both_ranks(groups):
    rank, t, other = dist.get_rank(), torch.ones(4), 1 - dist.get_rank()
    if rank > 1 or dist.get_world_size() == 1:
        return
    kind = dist.isend if rank else dist.irecv
    for expected, says in [(t[1:], "12 bytes of float32"), (t.int(), "16 bytes of int32")]:
        text = f"rank 1 sends 16 bytes of float32, and rank 0 expects {says}"
        with pytest.raises(dist.DistBackendError, match=text):
            kind(t if rank else expected, other, groups[0]).wait()
    if rank == 0:
        late = dist.irecv(t, 1, groups[0])
        with pytest.raises(dist.DistBackendError, match=r"Timed out waiting 300 ms for .* \(recv"):
            late.wait(datetime.timedelta(seconds=0.3))
        dist.send(t, 1, groups[0])
        assert late.wait() and not t.any()
    else:
        dist.recv(t, 0, groups[0])
        dist.send(torch.zeros(4), 0, groups[0])
    with pytest.raises(ValueError, match="(?i)same as the (process )?rank"):
        dist.send(t, rank, groups[0])


def test_reports_show_waiting_sends_and_receives(groups):
    """A report shows a waiting receive without blaming a rank, and later as done."""
    if dist.get_rank() > 1 or dist.get_world_size() == 1:
        return
    t, other = torch.ones(5), 1 - dist.get_rank()
    late = dist.irecv(t, other, groups[0], 9)
    with pytest.raises(dist.DistBackendError, match="Timed out"):
        late.wait(datetime.timedelta(seconds=0.1))
    path = memory.files_of(os.getpid())[0]
    with memory.Recorder(path) as recorder:
        seen = recorder.snapshot()
        waits = live.pending(seen)[-1]
        alone = seen._replace(ops=[waits])  # without the calls that other tests have left unmatched
        text = report.summary(alone, [alone])
        dist.isend(t, other, groups[0], 8)
        dist.recv(t.clone(), other, groups[0], 8)  # now the other rank's receive has timed out, too
        dist.isend(t, other, groups[0], 9)
        late.wait()
        ended = [op["phase"] for op in recorder.ops() if op["number"] == waits["number"]]
    assert (waits["kind"], waits["bytes"], ended) == ("recv", 20, ["done"])
    assert "tag9' (20 B, a recv that has not ended)" in text and "waited for rank" not in text


def test_the_timeline_shows_sends_and_receives(groups, tmp_path):
    rank, path = dist.get_rank(), tmp_path / f"timeline{dist.get_rank()}"
    if rank > 1 or dist.get_world_size() == 1:
        return
    hvd.start_timeline(str(tmp_path / "timeline{rank}"))
    kind = dist.recv if rank else dist.send
    kind(torch.ones(100_000), 1 - rank, groups[0], 3)
    hvd.stop_timeline()
    (spans,) = (found for name, found in spans_of(json.loads(path.read_text())) if "tag3" in name)
    begin, met = spans[f"negotiate {kind.__name__}"]
    assert begin <= met == spans[kind.__name__][0] <= spans[kind.__name__][1]


def test_a_monitored_barrier_names_the_late_rank(groups):
    rank, size = dist.get_rank(), dist.get_world_size()
    groups[0].monitored_barrier(datetime.timedelta(minutes=1), wait_all_ranks=True)
    if size == 1:
        return
    short, late = datetime.timedelta(seconds=4.7), size - 1
    dist.barrier(group=groups[0])
    if rank == 0:
        with pytest.raises(RuntimeError, match=f"Rank {late} failed to pass monitoredBarrier in 4"):
            groups[0].monitored_barrier(short)
    elif rank != late:
        with pytest.raises(RuntimeError, match="check rank 0 logs for faulty rank"):
            groups[0].monitored_barrier(short)
    dist.barrier(group=groups[0])
    with memory.Recorder(memory.files_of(os.getpid())[0]) as recorder:  # reports show what waits
        until = time.monotonic() + 60
        while any("monitored" in op["name"] for op in live.pending(recorder.snapshot())):
            assert time.monotonic() < until, "a send or receive of the barrier still waits"
            time.sleep(0.1)
    dist.barrier(group=groups[0])
    if rank == late:
        with pytest.raises(RuntimeError, match="rank 0 no longer waits for it"):
            groups[0].monitored_barrier(datetime.timedelta(minutes=1))
    dist.barrier(group=groups[0])
