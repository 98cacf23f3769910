"""torch.distributed over hvdlite: futures and time-outs.

tests/frameworks/scripts/torch_futures.py uses futures on many threads concurrently.
"""

import datetime
import os
import signal
import time

import pytest
import torch
import torch.distributed as dist

LONGEST = datetime.timedelta.max
NONE = datetime.timedelta()


def start(group, t):
    return dist.all_reduce(t, group=group, async_op=True)


def test_the_future_of_a_completed_call_does_not_time_out(groups):
    """The future may complete while a wait copies back into a tensor with gaps, which is slow."""
    t = torch.ones(1500, 3000)[:, ::2].t()
    for _ in range(12):
        work = start(groups[0], t.fill_(1))
        future = work.get_future()
        work.wait()
        assert (future.wait()[0] == dist.get_world_size()).all()


@pytest.mark.parametrize("mode", [True, False])
def test_tensors_with_gaps_made_in_inference_mode_get_their_results(mode, groups):
    """A thread outside of inference mode copies results into tensors with gaps."""
    rank, size = dist.get_rank(), dist.get_world_size()
    with torch.inference_mode(mode):
        outs = [torch.zeros(3, 2)[:, 0] for _ in range(size)]
        work = dist.all_gather(outs, torch.full((3,), float(rank)), group=groups[0], async_op=True)
        sums = torch.full((3, 2), float(rank))[:, 0]
        backend = groups[0]._get_backend(torch.device("cpu"))
        summed = backend.allreduce([sums]).get_future()
    work.get_future().wait()
    summed.wait()
    assert [t.tolist() for t in outs] == [[r] * 3 for r in range(size)]
    assert sums.tolist() == [sum(range(size))] * 3
    assert [t.is_inference() for t in (*outs, sums)] == [mode] * (size + 1)


def test_a_call_without_tensors_completes_immediately(groups):
    group = dist.new_group(backend="hvdlite", timeout=datetime.timedelta(minutes=1))
    nothing = [[] for _ in range(dist.get_world_size())]
    work = group._get_backend(torch.device("cpu")).allgather_coalesced(nothing, [])
    assert work.get_future().wait() == []


@pytest.mark.parametrize("days", [400_000, 100_000_000, LONGEST.days])
def test_a_time_out_of_many_years_does_not_overflow(days, groups, several):
    limit, t = datetime.timedelta(days), torch.ones(4)
    group = dist.new_group(backend="hvdlite", timeout=limit)
    if dist.get_rank() == 1:
        time.sleep(0.1)  # so that the other ranks have to wait
    work = start(groups[0], t)
    group.monitored_barrier(limit)
    if dist.get_rank() == 1:
        time.sleep(0.1)
    start(groups[0], t).wait(limit)
    work.wait(limit)
    assert start(group, t).get_future().wait() == [t]


def test_a_monitored_barrier_with_a_time_out_of_0_ends_immediately(groups, several):
    if dist.get_rank() == 0:
        group = dist.new_group([0], backend="hvdlite", use_local_synchronization=True)
        group.monitored_barrier(NONE)
        with pytest.raises(dist.DistBackendError, match="Rank 0 timed out in monitoredBarrier"):
            groups[0].monitored_barrier(NONE)
    dist.barrier(group=groups[0])
    if dist.get_rank() != 0:
        with pytest.raises(dist.DistBackendError, match="check rank 0 logs"):
            groups[0].monitored_barrier(NONE)


def test_a_callback_gets_the_timeout_error_of_the_future_that_it_waits_for(groups, several, short):
    for _ in range(3):
        if dist.get_rank() == 0:
            late = start(short, torch.ones(3)).get_future()
            waits = (
                start(groups[0], torch.ones(3)).get_future().then(lambda _, late=late: late.wait())
            )
            with pytest.raises(
                RuntimeError, match=r"Timed out waiting 300 ms for \S+ \(all_reduce"
            ):
                waits.wait()
        else:
            start(groups[0], torch.ones(3)).wait()


def test_a_callback_that_raises_fails_only_its_own_future(groups):
    def fails(future):
        raise ValueError("on purpose")

    futures = [start(groups[0], torch.ones(3)).get_future() for _ in range(8)]
    failed = [future.then(fails) for future in futures]
    for future, after in zip(futures, failed):
        assert (future.wait()[0] == dist.get_world_size()).all()
        with pytest.raises(RuntimeError, match="ValueError: on purpose"):
            after.wait()


def test_a_forked_child_that_waits_for_its_parents_call_gets_an_error(groups, several):
    if dist.get_rank() == 0:
        work = start(groups[0], torch.ones(3))
        child = os.fork()
        if child == 0:
            signal.alarm(60)  # the signal ends the child if the child hangs
            texts = []
            for look in (work.get_future().wait, work.wait):
                try:
                    look()
                except RuntimeError as error:
                    texts.append("only that process can wait for the tensor" in str(error))
            os._exit(0 if texts == [True, True] else 1)
        assert os.waitpid(child, 0)[1] == 0
    dist.barrier(group=groups[1])
    if dist.get_rank() != 0:
        start(groups[0], torch.ones(3)).wait()
    else:
        work.wait()


def test_many_calls_complete_if_no_thread_waits_for_earlier_calls(groups):
    for _ in range(50):
        dist.all_reduce(torch.ones(100), group=groups[0], async_op=True)
    # more tensors than prepared names
    tensors = [torch.full((10 + i,), float(i)) for i in range(150)]
    works = [dist.all_reduce(t, group=groups[0], async_op=True) for t in tensors]
    assert all(work.wait() for work in reversed(works)) and works[0].is_completed()
    for i, t in enumerate(tensors):
        assert (t == i * dist.get_world_size()).all()
