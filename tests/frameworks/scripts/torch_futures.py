"""Collectives of PyTorch's backend whose Work and Future objects several threads use at once.

    torchrun --nproc-per-node 2 torch_futures.py CALLS [SEED]

Each thread has a separate process group. Calls run at once or later, in the caller or in a thread
of hvdlite, and their Work may be dropped; each rank chooses differently. Meanwhile other groups are
aborted with calls in progress. Errors are right only if a callback raises or a call is aborted. All
results must be right.
"""

import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import timedelta

import torch
import torch.distributed as dist

THREADS, LOOKERS, CALLS_AN_ABORT = 4, 6, 200
LIMIT = timedelta(seconds=120)
problems: list = []


# ---- calls: each returns a work (None if complete) and a function that checks the result ----


def all_reduce(group, n, value, later):
    t = torch.full((n,), value + dist.get_rank())
    total = sum(value + r for r in range(dist.get_world_size()))
    return dist.all_reduce(t, group=group, async_op=later), lambda: (t == total).all()


def all_reduce_with_gaps(group, n, value, later):
    """Start an all_reduce of a tensor with gaps: hvdlite copies the result back, which is slow."""
    t = torch.full((n // 8 + 1, 32), value + dist.get_rank()).t()
    total = sum(value + r for r in range(dist.get_world_size()))
    work = group._get_backend(t.device).allreduce([t])
    return work, lambda: (t == total).all()


def all_gather(group, n, value, later):
    outs = [torch.zeros(n) for _ in range(dist.get_world_size())]
    work = dist.all_gather(outs, torch.full((n,), value + dist.get_rank()), group, async_op=later)
    return work, lambda: all((out == value + r).all() for r, out in enumerate(outs))


def broadcast(group, n, value, later):
    root = int(value) % dist.get_world_size()
    t = torch.full((n,), value + dist.get_rank())
    return dist.broadcast(t, root, group, async_op=later), lambda: (t == value + root).all()


def reduce_scatter(group, n, value, later):
    size, out = dist.get_world_size(), torch.zeros(n)
    parts = [torch.full((n,), value + part) for part in range(size)]
    work = dist.reduce_scatter(out, parts, group=group, async_op=later)
    return work, lambda: (out == (value + dist.get_rank()) * size).all()


def nothing(group, n, value, later):
    empty = [[] for _ in range(dist.get_world_size())]
    return group._get_backend(torch.device("cpu")).allgather_coalesced(empty, []), lambda: True


def ring(group, n, value, later):
    rank, size, t = dist.get_rank(), dist.get_world_size(), torch.zeros(n)
    sent = dist.isend(torch.full((n,), value + rank), (rank + 1) % size, group)
    before = (rank - 1) % size
    return dist.irecv(t, before, group), lambda: sent.wait() and (t == value + before).all()


def another_follows(group, n, value, later):
    """Start an all_reduce whose callback calls all_reduce on the same group."""

    def goes_on(future):
        (t,) = future.value()
        dist.all_reduce(t, group=group)
        return t

    t, size = torch.full((n,), value), dist.get_world_size()
    work = dist.all_reduce(t, group=group, async_op=True)
    last = work.get_future().then(goes_on)
    return work, lambda: (last.wait() == value * size * size).all()


CALLS = (all_reduce, all_reduce_with_gaps, all_gather, broadcast, reduce_scatter, nothing, ring,
         another_follows)  # fmt: skip


# ---- uses of a work, on any thread ----


def waits(work):
    work.wait()


def waits_with_a_limit(work):
    work.wait(LIMIT)


def polls(work):
    while not work.is_completed():
        time.sleep(0)
    assert work.is_success()


def waits_for_the_future(work):
    work.get_future().wait()


def chains(work):
    assert work.get_future().then(lambda f: len(f.value())).then(lambda f: f.value()).wait() < 99


def chains_what_raises(work):
    def fails(future):
        future.value()
        raise ValueError("on purpose")

    try:
        work.get_future().then(fails).wait()
    except Exception as error:
        if "on purpose" in str(error):
            return
        raise
    raise AssertionError("the callback's error was lost")


LOOKS = waits, waits_with_a_limit, polls, waits_for_the_future, chains, chains_what_raises


def note(what, look, *args):
    try:
        look(*args)
    except Exception as error:
        problems.append(f"{what}, {look.__name__}: {type(error).__name__}: {error}")


def finish(lookers, started):
    """Call the functions `looks` with a Work; if there are none, wait up to 30 s for the result."""
    what, work, is_right, looks = started
    started.clear()  # this thread has the only reference to the work
    others = [lookers.submit(note, what, look, work) for look in looks[1:]]
    for look in looks[:1]:
        note(what, look, work)
    wait(others)
    until = time.monotonic() + (0 if looks or work is None else 30)
    del work
    while not (right := is_right()) and time.monotonic() < until:
        time.sleep(0.001)
    if not right:
        problems.append(f"{what}: a wrong result")


def calls_of(thread, group, calls, seed, lookers):
    """Make the calls, in the same order on all ranks; each rank uses Work objects its own way."""
    alike = random.Random(f"{seed} {thread}")
    own = random.Random(f"{seed} {thread} {dist.get_rank()}")
    left, later = [], 0
    for number in range(calls):
        if number % 50 == 0:  # later: share of asynchronous calls; 0: calls use the fast path
            later = own.choice((0, 0.1, 1)) if alike.random() < 0.6 else 0
        call, n, value = alike.choice(CALLS), alike.choice((1, 300, 20_000)), float(number % 50)
        what = f"call {number} of thread {thread} ({call.__name__}, {n})"
        work, is_right = call(group, n, value, own.random() < later)
        looks = own.sample(LOOKS, own.randint(0, 3)) if work else []
        started = [what, work, is_right, looks]
        # another_follows starts a call in a callback; all ranks must make it before the next call
        if work and call is not another_follows:
            left.append(started)
        else:
            finish(lookers, started)
        del work
        while left and (number == calls - 1 or len(left) > own.randrange(1, 40)):
            finish(lookers, left.pop(own.randrange(len(left))))


def abort_one(all_ranks, lookers):
    """Rank 0 aborts a group with two calls in progress; the other ranks make them afterwards."""
    group, size = dist.new_group(backend="hvdlite", timeout=LIMIT), dist.get_world_size()
    t, gaps = torch.ones(100), torch.ones(100, 9).t()

    def starts():
        backend = group._get_backend(t.device)
        return [dist.all_reduce(t, group=group, async_op=True), backend.allreduce([gaps])]

    def is_aborted(look, work):
        try:
            look(work)
        except Exception as error:
            if "was aborted on this rank" not in str(error):
                problems.append(f"an aborted call, {look.__name__}: {error}")
        else:
            problems.append(f"an aborted call, {look.__name__}: no error")

    if dist.get_rank() == 0:
        works = starts()
        looks = [look for look in LOOKS if look not in (polls, chains_what_raises)]
        seen = [lookers.submit(is_aborted, look, work) for look in looks for work in works]
        group.abort()
        wait(seen)
    dist.barrier(group=all_ranks)
    if dist.get_rank() != 0:
        for work in starts():
            note("a call that rank 0 has aborted", waits, work)
        if not ((t == size).all() and (gaps == size).all()):
            problems.append("a call that rank 0 has aborted: a wrong result")
    dist.destroy_process_group(group)


def main(calls, seed=0):
    dist.init_process_group("hvdlite", timeout=LIMIT)
    groups = [dist.new_group(backend="hvdlite", timeout=LIMIT) for _ in range(THREADS)]
    with ThreadPoolExecutor(LOOKERS * THREADS) as lookers:
        each = [
            threading.Thread(target=calls_of, args=(i, group, calls // THREADS, seed, lookers))
            for i, group in enumerate(groups)
        ]
        for thread in each:
            thread.start()
        for _ in range(max(2, calls // CALLS_AN_ABORT)):
            abort_one(dist.group.WORLD, lookers)
        for thread in each:
            thread.join()
    dist.barrier()
    text = "".join(f"\n  {problem}" for problem in problems[:5])
    print(f"CALLS {calls} on rank {dist.get_rank()}: {len(problems)} problems{text}\n", end="")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
