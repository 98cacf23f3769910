"""Process groups over hvdlite: concurrent groups, disagreement, late ranks, abort."""

import datetime
import threading
import time
from functools import partial

import pytest
import torch
import torch.distributed as dist

from hvdlite import failure_of
from hvdlite.torch.backend import groups as process_groups

MAX = dist.ReduceOp.MAX


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


def gather(root: int, t, **how):
    ranks = range(dist.get_world_size()) if dist.get_rank() == root else []
    return dist.gather(t, [torch.empty_like(t) for _ in ranks] or None, root, **how)


# calls of rank 1, and of the other ranks
DISAGREEMENTS = {
    "shape": [partial(dist.all_reduce, torch.ones(n)) for n in (3, 4)],
    "dtype": [partial(dist.all_reduce, torch.ones(4, dtype=d)) for d in (torch.int, torch.float)],
    "call": [partial(call, torch.ones(4), 0) for call in (dist.broadcast, dist.reduce)],
    # the core has the same kind, dtype and shape for the next calls
    "bool and uint8": [
        partial(dist.all_reduce, torch.ones(4, dtype=d), MAX) for d in (torch.bool, torch.uint8)
    ],
    "bytes of two dtypes": [
        partial(dist.broadcast, torch.zeros(4, dtype=d), 0)
        for d in (torch.float8_e4m3fn, torch.float8_e5m2)
    ],
    "bitwise op": [
        partial(dist.all_reduce, torch.ones(4, dtype=torch.int), op)
        for op in (dist.ReduceOp.BAND, dist.ReduceOp.BXOR)
    ],
    "root of reduce": [partial(dist.reduce, torch.ones(4), root) for root in (1, 0)],
    "root of gather": [partial(gather, root, torch.ones(4)) for root in (1, 0)],
    "barrier": [dist.barrier, partial(dist.all_reduce, torch.ones(1, dtype=torch.uint8), MAX)],
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("wrong", DISAGREEMENTS)
def test_a_disagreement_in_a_torch_group_is_an_error_on_every_rank(wrong, groups, several):
    call = DISAGREEMENTS[wrong][0 if dist.get_rank() == 1 else 1]
    with pytest.raises(dist.DistBackendError, match=r"ranks disagree.* rank 1: ") as raised:
        call(group=groups[0])
    failure = failure_of(raised.value)
    assert failure.kind == "mismatch" and failure.tensor
    with pytest.raises(dist.DistBackendError, match=r"ranks disagree.* rank 1: "):
        call(group=groups[0], async_op=True).get_future().wait()
    right = torch.ones(4)
    dist.all_reduce(right, group=groups[0])
    assert (right == dist.get_world_size()).all()


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("few", [1, 2])
def test_coalesced_calls_of_different_lengths_are_an_error_on_every_rank(few, groups, several):
    tensors = [torch.ones(4) for _ in range(3 if dist.get_rank() == 1 else few)]
    with pytest.raises(dist.DistBackendError, match=f"number of tensors: .*: {few}.* 1: 3"):
        dist.all_reduce_coalesced(tensors, group=groups[0])
    dist.barrier(group=groups[0])


def test_an_alltoall_of_different_sizes_is_an_error_on_every_rank(groups, several):
    t = torch.zeros(dist.get_world_size(), 3 if dist.get_rank() == 1 else 4)
    with pytest.raises(dist.DistBackendError, match=r"sends \d elements .* which expects \d"):
        dist.all_to_all_single(torch.empty_like(t), t, group=groups[0])
    dist.barrier(group=groups[0])


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
