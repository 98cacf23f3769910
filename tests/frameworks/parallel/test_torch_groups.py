"""Process groups over hvdlite: concurrent groups, disagreement, late ranks, abort."""

import datetime
import threading
import time

import pytest
import torch
import torch.distributed as dist

from hvdlite import failure_of
from hvdlite.torch.backend import groups as process_groups


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_rank_asks_a_lost_store_only_once(groups):
    """Otherwise the rank would ask the store until the group's time-out."""

    class Gone:
        asked = 0

        def wait(self, keys, timeout) -> None:
            self.asked += 1
            raise dist.DistNetworkError("Connection reset by peer")

    store = Gone()
    with pytest.raises(dist.DistNetworkError):
        process_groups._wait(store, ["key"], datetime.timedelta(minutes=30))
    assert store.asked == 1


def test_concurrent_calls_in_several_process_groups_are_right(groups):
    rank, size = dist.get_rank(), dist.get_world_size()
    made = [dist.new_group(list(range(first, size)), backend="hvdlite") for first in range(size)]
    works, tensors = [], [torch.full((3,), float(rank)) for _ in range(rank + 1)]
    for group, t in reversed(list(zip(made, tensors))):
        works.append(dist.all_reduce(t, group=group, async_op=True))
    assert all(work.wait() for work in works)
    for first, t in enumerate(tensors):
        assert (t == sum(range(first, size))).all()
    for group in made[: rank + 1]:
        dist.destroy_process_group(group)


@pytest.mark.parametrize("wrong", ["shape", "type", "call"])
def test_a_disagreement_in_a_torch_group_is_an_error_on_every_rank(wrong, groups, several):
    odd = dist.get_rank() == 1
    t = torch.ones(3 if odd and wrong == "shape" else 4)
    t = t.int() if odd and wrong == "type" else t
    call = dist.broadcast if odd and wrong == "call" else dist.all_reduce
    how = {"src": 0} if call is dist.broadcast else {}
    with pytest.raises(dist.DistBackendError, match=r"ranks? .*1") as raised:
        call(t, **how, group=groups[0])
    failure = failure_of(raised.value)
    assert failure.kind == "mismatch" and failure.tensor
    with pytest.raises(dist.DistBackendError, match=r"ranks? .*1"):
        call(t, **how, group=groups[0], async_op=True).get_future().wait()
    right = torch.ones(4)
    dist.all_reduce(right, group=groups[0])
    assert (right == dist.get_world_size()).all()


def test_other_groups_work_after_a_late_rank_has_caused_a_time_out(groups, several, short):
    t = torch.ones(3)
    if dist.get_rank() == 0:
        work = dist.all_reduce(t, group=short, async_op=True)
        with pytest.raises(RuntimeError, match="Timed out waiting 300 ms"):
            work.wait()
        with pytest.raises(RuntimeError, match="Timed out"):
            work.get_future().wait()
    dist.barrier(group=groups[0])
    if dist.get_rank() != 0:
        work = dist.all_reduce(t, group=short, async_op=True)
        work.wait(datetime.timedelta(minutes=1))
        assert (t == dist.get_world_size()).all()


@pytest.mark.parametrize("call", ["all_reduce", "recv", "monitored_barrier"])
def test_abort_ends_the_wait_for_a_rank_that_never_makes_the_call(call, groups, several):
    """All three groups have the same ranks, so one engine moves their data."""
    hangs, other = (dist.new_group(backend="hvdlite") for _ in range(2))
    ours = torch.ones(3)
    if dist.get_rank() == 0:
        calls = {
            "all_reduce": lambda: dist.all_reduce(torch.ones(3), group=hangs),
            "recv": lambda: dist.recv(torch.ones(3), 1, group=hangs),
            "monitored_barrier": lambda: hangs.monitored_barrier(),
        }
        future = dist.all_reduce(torch.ones(3), group=hangs, async_op=True).get_future()
        threading.Timer(1, hangs.abort).start()
        begin = time.monotonic()
        with pytest.raises(dist.DistBackendError, match=r"torch\.\S+ \(\w+\) was aborted on this"):
            calls[call]()
        with pytest.raises(RuntimeError, match=r"\(all_reduce\) was aborted on this rank"):
            future.wait()
        assert time.monotonic() - begin < 60
        with pytest.raises(dist.DistBackendError, match=r"torch\.\d+ was aborted on this rank"):
            calls[call]()
    dist.all_reduce(ours, group=other)
    assert (ours == dist.get_world_size()).all()
    for group in (hangs, other):
        dist.destroy_process_group(group)
