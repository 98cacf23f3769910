"""torch.distributed over hvdlite beside Gloo: the same calls, the same results, on every rank."""

import datetime
import os
import random
import threading
import time

import pytest
import torch
import torch.distributed as dist

import hvdlite.torch.backend  # noqa: F401 - test_torch_backend.py beside this folder does without
from hvdlite.core.names import owner_name
from hvdlite.core.native import ffi, lib

SIZES = (0, 1, 7, 1000)
TYPES = (
    torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex64, torch.bool,
)  # fmt: skip
LIMIT = datetime.timedelta(seconds=60)


@pytest.fixture(scope="module")
def groups():
    """One over hvdlite, one over Gloo, of all ranks."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    new = not dist.is_initialized()  # the contract's trainers may have made one
    if new:
        dist.init_process_group("hvdlite", init_method="hvdlite://", timeout=LIMIT)
    yield dist.new_group(backend="hvdlite", timeout=LIMIT), dist.new_group(backend="gloo")
    if new:
        dist.destroy_process_group()


def values(dtype, *shape, salt=0) -> torch.Tensor:
    """Small whole numbers, of which sums and products are exact, other ones on each rank."""
    numbers = torch.arange(torch.Size(shape).numel()).reshape(shape)
    small = (numbers * 3 + dist.get_rank() * 5 + salt) % 3 + 1
    return (small > 1) if dtype is torch.bool else small.to(dtype)


def allreduce(dtype, n, group, op=dist.ReduceOp.SUM):
    t = values(dtype, n)
    dist.all_reduce(t, op, group=group)
    return [t]


def broadcast(dtype, n, group):
    t = values(dtype, n, 2).t()
    dist.broadcast(t, dist.get_world_size() - 1, group=group)
    return [t]


def reduce(dtype, n, group, op=dist.ReduceOp.SUM):
    t = values(dtype, n)
    dist.reduce(t, 0, op, group=group)
    return [t] if dist.get_rank() == 0 else []


def allgather(dtype, n, group):
    outs = [values(dtype, n) for _ in range(dist.get_world_size())]
    dist.all_gather(outs, values(dtype, n, salt=1), group=group)
    return outs


def allgather_into_tensor(dtype, n, group):
    out = torch.zeros(dist.get_world_size() * n, dtype=dtype)
    dist.all_gather_into_tensor(out, values(dtype, n), group=group)
    return [out]


def reducescatter(dtype, n, group, op=dist.ReduceOp.SUM):
    out = torch.zeros(n, dtype=dtype)
    parts = [values(dtype, n, salt=i) for i in range(dist.get_world_size())]
    dist.reduce_scatter(out, parts, op, group=group)
    return [out]


def reducescatter_tensor(dtype, n, group, op=dist.ReduceOp.SUM):
    out = torch.zeros(n, dtype=dtype)
    dist.reduce_scatter_tensor(out, values(dtype, dist.get_world_size() * n), op, group=group)
    return [out]


def alltoall_single(dtype, n, group):
    out = torch.zeros(dist.get_world_size() * n, 3, dtype=dtype)
    dist.all_to_all_single(out, values(dtype, dist.get_world_size() * n, 3), group=group)
    return [out]


def alltoall_uneven(dtype, n, group):
    rank, size = dist.get_rank(), dist.get_world_size()
    to, of = [n + r for r in range(size)], [n + rank] * size
    out = torch.zeros(sum(of), 2, dtype=dtype)
    dist.all_to_all_single(out, values(dtype, sum(to), 2), of, to, group=group)
    return [out]


def gather(dtype, n, group):
    root, ranks = dist.get_world_size() - 1, range(dist.get_world_size())
    outs = [values(dtype, n) for _ in ranks] if dist.get_rank() == root else None
    dist.gather(values(dtype, n, salt=1), outs, root, group=group)
    return outs or []


def scatter(dtype, n, group):
    t, ranks = values(dtype, n), range(dist.get_world_size())
    parts = [values(dtype, n, salt=i) for i in ranks] if dist.get_rank() == 0 else None
    dist.scatter(t, parts, 0, group=group)
    return [t]


def neighbours(dtype, n, group):
    rank, size = dist.get_rank(), dist.get_world_size()
    if size == 1:
        return []
    out = torch.zeros(n, dtype=dtype)
    calls = [dist.P2POp(dist.isend, values(dtype, n), (rank + 1) % size, group)]
    calls.append(dist.P2POp(dist.irecv, out, (rank - 1) % size, group))
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    return [out]


MOVES = (broadcast, allgather, allgather_into_tensor, alltoall_single, alltoall_uneven,
         gather, scatter, neighbours)  # fmt: skip
REDUCES = (allreduce, reduce, reducescatter, reducescatter_tensor)


def same(ours, theirs) -> bool:
    """Of truths Gloo sums the bytes, which makes 2 of two."""
    truths = [t.view(torch.uint8) > 0 if t.dtype is torch.bool else t for t in theirs]
    return len(ours) == len(theirs) and all(map(torch.equal, ours, truths))


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("call", [*MOVES, *REDUCES], ids=lambda call: call.__name__)
def test_results_are_those_of_gloo(call, groups):
    for dtype in TYPES:
        for n in SIZES:
            try:
                theirs = call(dtype, n, groups[1])
            except (RuntimeError, ValueError):  # Gloo does not take it
                continue
            assert same(call(dtype, n, groups[0]), theirs), (dtype, n)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("op", ["PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"])
@pytest.mark.parametrize("call", REDUCES, ids=lambda call: call.__name__)
def test_reduce_ops_are_those_of_gloo(call, op, groups):
    of_bits = op.startswith("B")
    for dtype in [d for d in TYPES if not (of_bits and (d.is_floating_point or d.is_complex))]:
        how = getattr(dist.ReduceOp, op)
        try:
            theirs = call(dtype, 7, groups[1], how)
        except (RuntimeError, ValueError):
            continue
        assert same(call(dtype, 7, groups[0], how), theirs), dtype


def test_a_tensor_with_gaps(groups):
    t = values(torch.float32, 5, 4)
    before, whole = t.clone(), t[:, ::2].contiguous()
    dist.all_reduce(whole, group=groups[1])
    dist.all_reduce(t[:, ::2], group=groups[0])
    assert torch.equal(t[:, ::2], whole) and torch.equal(t[:, 1::2], before[:, 1::2])


def test_averages_of_floating_point_numbers(groups):
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        size = dist.get_world_size()
        t = torch.full((5,), dist.get_rank(), dtype=dtype)
        dist.all_reduce(t, dist.ReduceOp.AVG, group=groups[0])
        assert torch.allclose(t, torch.full((5,), (size - 1) / 2, dtype=dtype))


def test_many_at_once_and_those_that_nobody_waits_for(groups):
    for _ in range(50):
        dist.all_reduce(torch.ones(100), group=groups[0], async_op=True)
    tensors = [torch.full((10 + i,), float(i)) for i in range(150)]  # more than there are names
    works = [dist.all_reduce(t, group=groups[0], async_op=True) for t in tensors]
    assert all(work.wait() for work in reversed(works)) and works[0].is_completed()
    for i, t in enumerate(tensors):
        assert (t == i * dist.get_world_size()).all()


def calls_of_a_group(group, number, calls):
    """Sums in the group's order, of which each rank waits for some at once, for others later.

    :param number: of the group; all ranks have the same values and lengths by it.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    common, own, left, later = random.Random(number), random.Random(number * 50 + rank), [], 0.0
    for call in range(calls):
        n = 1 + call % 60 % 7 * 90 if common.random() < 0.99 else common.choice((1, 700, 20_000))
        value = common.randrange(1, 1000)
        if call % 200 == 0:  # with 0 on all ranks, those of a name that comes again go express
            later = own.choice((0, 0.02, 0.5)) if common.random() < 0.4 else 0
        at_once = own.random() >= later
        t = torch.full((n,), float(value * (rank + 1)))
        work = dist.all_reduce(t, group=group, async_op=not at_once)
        left.append((work, t, value * size * (size + 1) // 2))
        if own.random() < 0.003:
            time.sleep(0.001)
        while left and (at_once or len(left) > own.randrange(1, 150) or call == calls - 1):
            work, t, expected = left.pop() if at_once else left.pop(own.randrange(len(left)))
            how = own.randrange(3) if work else 0
            while how == 1 and not work.is_completed():
                pass
            if how == 2:
                work.get_future().wait()
            assert not work or work.wait()
            assert (t == expected).all(), (call, n, expected, t[:3])
            if call < calls - 1:
                break


def test_calls_and_waits_in_many_orders(groups):
    """What goes express, what is queued and what the engine decides never meet in one sum."""
    calls, wrong = int(os.environ.get("HVDLITE_TEST_CALLS", 1500)), []
    several = [dist.new_group(backend="hvdlite", timeout=LIMIT) for _ in range(3)]

    def run(number):
        try:
            calls_of_a_group(several[number], number, calls)
        except BaseException as error:
            wrong.append(error)

    run(0)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(several))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong


def test_buckets_lie_in_shared_memory(groups):
    """DistributedDataParallel asks for them so."""
    backend, cpu = groups[0]._get_backend(torch.device("cpu")), torch.device("cpu")
    assert backend.supports_tensor_alloc(cpu) == (dist.get_world_size() > 1)
    if dist.get_world_size() > 1:
        t = backend.allocate_tensor(1000, dtype=torch.float64, device=cpu).fill_(1)
        dist.all_reduce(t, group=groups[0])
        assert t.dtype is torch.float64 and (t == dist.get_world_size()).all()
        assert ffi.string(lib.hvd_algorithm()) == b"direct allreduce"
        late = dist.new_group(backend="hvdlite", timeout=datetime.timedelta(seconds=0.3))
        backend = late._get_backend(cpu)
        if dist.get_rank() == 0:
            with pytest.raises(RuntimeError, match="timed out: some rank has not made the call"):
                backend.allocate_tensor(100, dtype=torch.float64, device=cpu)
        else:
            owner_name("array")  # as rank 0 did: names stay equal
        dist.barrier(group=groups[0])


def test_futures_and_what_follows_them(groups):
    def start(value):
        return dist.all_reduce(torch.full((4,), value), group=groups[0], async_op=True)

    def nested(future):  # waits on a thread that completes futures
        return future.value()[0] + start(1.0).get_future().wait()[0]

    futures = [start(float(i)).get_future() for i in range(5)]
    chained = [future.then(nested) for future in futures]
    for i, future in enumerate(chained):
        assert (future.wait() == (i + 1) * dist.get_world_size()).all()


def test_objects(groups):
    rank, ranks = dist.get_rank(), list(range(dist.get_world_size()))
    everyone, first, one = [None for _ in ranks], [{"of": rank}], [None]
    dist.all_gather_object(everyone, {"rank": rank}, group=groups[0])
    dist.broadcast_object_list(first, 0, group=groups[0])
    dist.scatter_object_list(one, [str(r) for r in ranks], 0, group=groups[0])
    assert everyone == [{"rank": r} for r in ranks]
    assert (first, one) == ([{"of": 0}], [str(rank)])


def test_groups_of_some_ranks_and_several_at_once(groups):
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


def test_between_two_ranks(groups):
    """Tags apart, each in order; of any size, with gaps, from any rank; nobody waits in between."""
    rank, size, group = dist.get_rank(), dist.get_world_size(), groups[0]
    after, before, lengths = (rank + 1) % size, (rank - 1) % size, (3, 0, 500_000, 40_000)
    if size == 1:
        return
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


def test_what_goes_wrong_between_two_ranks(groups):
    rank, t, other = dist.get_rank(), torch.ones(4), 1 - dist.get_rank()
    if rank > 1 or dist.get_world_size() == 1:
        return
    kind = dist.isend if rank else dist.irecv
    with pytest.raises(dist.DistBackendError, match="rank 1 sends 16 bytes, and rank 0 expects 12"):
        kind(t if rank else t[1:], other, groups[0]).wait()
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


def test_monitored_barrier(groups):
    rank, size = dist.get_rank(), dist.get_world_size()
    groups[0].monitored_barrier(LIMIT, wait_all_ranks=True)
    if size == 1:
        return
    short, late = datetime.timedelta(seconds=0.3), size - 1
    if rank == 0:
        with pytest.raises(RuntimeError, match=f"Rank {late} failed to pass monitoredBarrier in 3"):
            groups[0].monitored_barrier(short)
    elif rank != late:
        with pytest.raises(RuntimeError, match="check rank 0 logs for faulty rank"):
            groups[0].monitored_barrier(short)
    dist.barrier(group=groups[0])


@pytest.mark.parametrize("wrong", ["shape", "type", "call"])
def test_a_disagreement_is_an_error_on_every_rank(wrong, groups):
    if dist.get_world_size() == 1:
        return
    odd = dist.get_rank() == 1
    t = torch.ones(3 if odd and wrong == "shape" else 4)
    t = t.int() if odd and wrong == "type" else t
    with pytest.raises(dist.DistBackendError, match=r"ranks? .*1"):
        if odd and wrong == "call":
            dist.broadcast(t, 0, group=groups[0])
        else:
            dist.all_reduce(t, group=groups[0])
    assert (allreduce(torch.float32, 4, groups[0])[0] >= dist.get_world_size()).all()


def test_wrong_arguments_are_errors_at_once(groups):
    size = dist.get_world_size()
    with pytest.raises(RuntimeError, match="as many elements"):
        dist.reduce_scatter_tensor(torch.ones(2), torch.ones(2 * size + 1), group=groups[0])
    with pytest.raises((RuntimeError, ValueError), match="(?i)split|divide"):
        dist.all_to_all_single(torch.ones(size), torch.ones(size), [2] * size, group=groups[0])


def test_a_late_rank_is_an_error_within_the_time_and_no_loss(groups):
    if dist.get_world_size() == 1:
        return
    short = dist.new_group(backend="hvdlite", timeout=datetime.timedelta(seconds=0.3))
    t = torch.ones(3)
    if dist.get_rank() == 0:
        work = dist.all_reduce(t, group=short, async_op=True)
        with pytest.raises(RuntimeError, match="Timed out waiting 300 ms"):
            work.wait()
        with pytest.raises(RuntimeError, match="Timed out"):
            work.get_future().wait()
    dist.barrier(group=groups[0])
    if dist.get_rank() != 0:
        dist.all_reduce(t, group=short)
        assert (t == dist.get_world_size()).all()
