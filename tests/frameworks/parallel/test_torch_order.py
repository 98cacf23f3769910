"""A group's calls, at once and later, waited for in many ways and orders: each has its own result.

Calls on the fast path, queued, decided by the engine and ended by the keeper never mix.
"""

import os
import random
import threading
import time

import pytest
import torch
import torch.distributed as dist

CALLS = int(os.environ.get("HVDLITE_TEST_CALLS", 1200))
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")
KINDS = ("allreduce",) * 5 + ("greatest", "broadcast", "gather", "reducescatter")
WAYS = ("wait", "ask", "future", "both", "then", "drop")


def laid_out(values, gaps: bool) -> torch.Tensor:
    """The same values; with gaps between them the backend works on a copy, which it copies back."""
    if not gaps:
        return values.clone()
    return torch.stack([values, torch.full_like(values, -7)], 1)[:, 0]


def start(kind, n, value, gaps, group, at_once):
    """Return work, output and what that must become: other numbers by call, rank and element."""
    rank, size, pattern = dist.get_rank(), dist.get_world_size(), torch.arange(n) % 5.0
    of = [pattern + value * (r + 1) for r in range(size)]
    how = {"group": group, "async_op": not at_once}
    if kind == "gather":
        out = laid_out(torch.zeros(n * size), gaps)
        return dist.all_gather_into_tensor(out, of[rank], **how), out, torch.cat(of)
    if kind == "reducescatter":
        out = laid_out(torch.zeros(n), gaps)
        return dist.reduce_scatter_tensor(out, of[rank].repeat(size), **how), out, sum(of)
    out = laid_out(of[rank], gaps)
    if kind == "broadcast":
        return dist.broadcast(out, size - 1, **how), out, of[-1]
    greatest = kind == "greatest"
    op = dist.ReduceOp.MAX if greatest else dist.ReduceOp.SUM
    return dist.all_reduce(out, op, **how), out, of[-1] if greatest else sum(of)


def finish(started):
    """Wait in this way; a work that is dropped has its result some time."""
    call, work, out, expected, way = started
    started.clear()  # nobody else has the work
    until = time.monotonic() + 30
    if way == "ask":
        while not work.is_completed():
            assert time.monotonic() < until, call
    elif way == "future":
        work.get_future().wait()
    elif way == "then":
        clone = work.get_future().then(lambda future: future.value()[0].clone())
        assert torch.equal(clone.wait(), expected), call
    elif way == "both":  # the keeper and this thread may end it at once
        work.get_future()
    if way in ("wait", "both"):
        assert work.wait()
    del work
    while way == "drop" and not torch.equal(out, expected) and time.monotonic() < until:
        time.sleep(0.001)
    assert torch.equal(out, expected), (call, way)


def calls_of_a_group(group, number):
    """A program by number, the same on all ranks but for when and how each waits."""
    common, own = random.Random(number), random.Random(number * 50 + dist.get_rank())
    left, later = [], 0
    shapes = [(common.choice(KINDS), 1 + common.randrange(7) * 90) for _ in range(60)]
    for call in range(CALLS):
        if call % 200 == 0:  # with 0 on all ranks, those of a repeated name take the fast path
            later = own.choice((0, 0.02, 0.5)) if common.random() < 0.6 else 0
        kind, n = shapes[call % 60]
        if common.random() < 0.03:
            kind, n = common.choice(KINDS), common.choice((0, 1, 700, 20_000))
            shapes[call % 60] = (kind, n) if common.random() < 0.5 else shapes[call % 60]
        gaps, value = common.random() < 0.2, common.randrange(1, 1000)
        at_once = own.random() >= later
        work, *results = start(kind, n, value, gaps, group, at_once)
        if at_once:
            assert torch.equal(*results), (call, kind, n)
        else:
            left.append([call, work, *results, own.choice(WAYS)])
        del work
        if own.random() < 0.003:
            time.sleep(0.001)
        while left and (call == CALLS - 1 or len(left) > own.randrange(1, 150)):
            finish(left.pop(own.randrange(len(left))))


def test_calls_and_waits_in_many_orders(groups):
    """In one thread, then in three of which each has a group."""
    wrong, several = [], [dist.new_group(backend="hvdlite") for _ in range(3)]

    def run(number):
        try:
            calls_of_a_group(several[number], number)
        except BaseException as error:
            wrong.append(error)

    run(0)
    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(several))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong


def test_many_at_once_and_those_that_nobody_waits_for(groups):
    for _ in range(50):
        dist.all_reduce(torch.ones(100), group=groups[0], async_op=True)
    tensors = [torch.full((10 + i,), float(i)) for i in range(150)]  # more than there are names
    works = [dist.all_reduce(t, group=groups[0], async_op=True) for t in tensors]
    assert all(work.wait() for work in reversed(works)) and works[0].is_completed()
    for i, t in enumerate(tensors):
        assert (t == i * dist.get_world_size()).all()
