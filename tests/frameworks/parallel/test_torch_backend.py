"""torch.distributed over hvdlite: results on every rank equal those of the same calls with Gloo."""

import time

import pytest
import torch
import torch.distributed as dist

from hvdlite.core.names import owner_name
from hvdlite.core.native import ffi, lib
from hvdlite.torch.backend import compiled
from hvdlite.torch.backend import groups as process_groups

SIZES = (0, 1, 7, 1000)
TYPES = (
    torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex64, torch.bool,
)  # fmt: skip


def values(dtype, *shape, salt=0) -> torch.Tensor:
    """Return small whole numbers that differ by rank: their sums and products are exact."""
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


def neighbors(dtype, n, group):
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
         gather, scatter, neighbors)  # fmt: skip
REDUCES = (allreduce, reduce, reducescatter, reducescatter_tensor)


def same(ours, theirs) -> bool:
    """Compare tensors bit by bit, bools by truth: Gloo adds their bytes, so True may be 2."""
    truths = [t.view(torch.uint8) > 0 if t.dtype is torch.bool else t for t in theirs]
    return len(ours) == len(theirs) and all(map(torch.equal, ours, truths))


@pytest.fixture(params=[False, True], ids=["", "staged"])
def staged(request, groups):
    """Stage CPU tensors through host memory as if they were on a GPU, if the parameter is True."""
    glue = compiled.load(process_groups.bucket)
    glue.stage(request.param)
    yield request.param
    glue.stage(False)


@pytest.mark.parametrize("call", [*MOVES, *REDUCES], ids=lambda call: call.__name__)
def test_torch_collectives_give_the_results_of_gloo(call, groups, staged):
    for dtype in TYPES:
        for n in SIZES:
            try:
                theirs = call(dtype, n, groups[1])
            except (RuntimeError, ValueError):  # Gloo refuses this dtype
                continue
            assert same(call(dtype, n, groups[0]), theirs), (dtype, n)


def of_one_memory(call: str, n: int, group) -> list:
    """Return the result of a call with lists whose tensors are consecutive in one memory block."""
    rank, size = dist.get_rank(), dist.get_world_size()
    whole, into = values(torch.float32, size * n), values(torch.float32, size * n, salt=1)
    parts, outs = list(whole.split(n)), list(into.split(n))
    if call == "all_gather":
        dist.all_gather(outs, parts[0], group=group)
    elif call == "all_gather in place":
        dist.all_gather(parts, parts[rank], group=group)
    elif call == "reduce_scatter":
        dist.reduce_scatter(outs[0], parts, group=group)
    elif call == "reduce_scatter in place":
        dist.reduce_scatter(parts[rank], parts, group=group)
        return [parts[rank]]
    elif call == "all_to_all":
        dist.all_to_all_single(into, whole, group=group)
    elif call == "scatter":
        dist.scatter(outs[-1], parts if rank == size - 1 else None, size - 1, group=group)
    elif call == "scatter in place":
        dist.scatter(parts[rank], parts if rank == 0 else None, 0, group=group)
    else:
        dist.gather(parts[rank], outs if rank == 0 else None, 0, group=group)
    return [whole, into]


@pytest.mark.parametrize("n", [1, 7, 1000])
@pytest.mark.parametrize(
    "call",
    ["all_gather", "all_gather in place", "reduce_scatter", "reduce_scatter in place", "scatter",
     "scatter in place", "gather", "all_to_all"],
)  # fmt: skip
def test_lists_of_tensors_in_one_memory_block_give_the_results_of_gloo(call, n, groups, staged):
    """hvdlite moves such lists without a copy, unless the call would overwrite its input."""
    ours, theirs = (of_one_memory(call, n, group) for group in groups)
    if call == "all_to_all":  # with lists of tensors, which Gloo does not take
        size = dist.get_world_size()
        outs = list(torch.zeros(size * n).split(n))
        dist.all_to_all(outs, list(values(torch.float32, size * n).split(n)), group=groups[0])
        ours[1] = torch.cat(outs)
    assert same(ours, theirs)


def test_scatter_into_an_input_of_another_rank_sends_the_input_before(groups):
    parts = [torch.full((3,), float(i)) for i in range(dist.get_world_size())]
    out, root = parts[-1], dist.get_rank() == 0
    dist.scatter(out, parts if root else None, 0, group=groups[0])
    assert (out == dist.get_rank()).all()


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("op", ["PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"])
@pytest.mark.parametrize("call", REDUCES, ids=lambda call: call.__name__)
def test_reduce_ops_give_the_results_of_gloo(call, op, groups, staged):
    of_bits = op.startswith("B")
    for dtype in [d for d in TYPES if not (of_bits and (d.is_floating_point or d.is_complex))]:
        how = getattr(dist.ReduceOp, op)
        try:
            theirs = call(dtype, 7, groups[1], how)
        except (RuntimeError, ValueError):
            continue
        assert same(call(dtype, 7, groups[0], how), theirs), dtype


def test_a_lazily_negated_tensor_with_gaps_is_reduced_in_place(groups, staged):
    """The test calls the backend: PyTorch's function would pass a copy and lose the result."""
    t = values(torch.complex64, 5, 4) * (1 + 2j)
    before, view = t.clone(), t.conj().imag
    whole = view.resolve_neg().contiguous()
    dist.all_reduce(whole, group=groups[1])
    groups[0]._get_backend(torch.device("cpu")).allreduce([view]).wait()
    assert view.is_neg() and torch.equal(view, whole) and torch.equal(t.real, before.real)


def test_floating_point_averages_of_all_widths_are_right(groups):
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        size = dist.get_world_size()
        t = torch.full((5,), dist.get_rank(), dtype=dtype)
        dist.all_reduce(t, dist.ReduceOp.AVG, group=groups[0])
        assert torch.allclose(t, torch.full((5,), (size - 1) / 2, dtype=dtype))


def test_averages_of_integers_are_rounded_to_zero(groups):
    """NCCL rounds to zero, too. Lightning's `log(..., sync_dist=True)` averages integers."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for sign in (1, -1):
        t = torch.tensor([sign * (rank + 3), sign * 7])
        dist.all_reduce(t, dist.ReduceOp.AVG, group=groups[0])
        assert t.tolist() == [sign * ((size + 5) // 2), sign * 7]


def test_buckets_of_ddp_are_in_shared_memory(groups, staged, short):
    """DistributedDataParallel calls allocate_tensor. hvdlite sums copies of `staged` tensors."""
    backend, cpu = groups[0]._get_backend(torch.device("cpu")), torch.device("cpu")
    assert backend.supports_tensor_alloc(cpu) == (dist.get_world_size() > 1)
    if dist.get_world_size() > 1:
        t = backend.allocate_tensor(1000, dtype=torch.float64, device=cpu).fill_(1)
        dist.all_reduce(t, group=groups[0])
        assert t.dtype is torch.float64 and (t == dist.get_world_size()).all()
        assert (ffi.string(lib.hvd_algorithm()) == b"direct allreduce") == (not staged)
        backend = short._get_backend(cpu)
        if dist.get_rank() == 0:
            with pytest.raises(
                RuntimeError, match="timed out: another rank has not made the same call"
            ):
                backend.allocate_tensor(100, dtype=torch.float64, device=cpu)
        else:
            owner_name("array")  # counts like rank 0's call: later names must be equal on all ranks
        dist.barrier(group=groups[0])


def test_a_hook_that_enlarges_a_bucket_gets_right_sums(groups):
    """PowerSGD's batched hook pads a bucket to a square."""
    backend, cpu = groups[0]._get_backend(torch.device("cpu")), torch.device("cpu")
    if dist.get_world_size() > 1:
        t = backend.allocate_tensor(1000, dtype=torch.float32, device=cpu).fill_(1).resize_(1024)
        dist.all_reduce(t, group=groups[0])
        assert (t[:1000] == dist.get_world_size()).all()


def test_callbacks_of_futures_run_and_give_results(groups, staged):
    def start(value):
        return dist.all_reduce(torch.full((4,), value), group=groups[0], async_op=True)

    def nested(future):  # this wait runs on a thread that completes futures
        return future.value()[0] + start(1.0).get_future().wait()[0]

    futures = [start(float(i)).get_future() for i in range(5)]
    chained = [future.then(nested) for future in futures]
    for i, future in enumerate(chained):
        assert (future.wait() == (i + 1) * dist.get_world_size()).all()


def test_a_waiting_thread_returns_when_another_thread_completes_the_work(groups):
    """Copying back into a tensor with gaps is slow: some waits begin while a thread copies."""
    ones, t = torch.ones(1500, 1500), torch.zeros(1500, 3000)[:, ::2].t()

    def start():
        t.copy_(ones)
        work = dist.all_reduce(t, group=groups[0], async_op=True)
        return work, work.get_future(), time.perf_counter()

    _, future, begin = start()
    future.wait()
    seconds = time.perf_counter() - begin
    for part in range(12):
        work, _, begin = start()
        time.sleep(seconds * part / 12)
        work.wait()
        assert (t == dist.get_world_size()).all()


def test_objects_are_gathered_broadcast_and_scattered(groups):
    rank, ranks = dist.get_rank(), list(range(dist.get_world_size()))
    everyone, first, one = [None for _ in ranks], [{"of": rank}], [None]
    dist.all_gather_object(everyone, {"rank": rank}, group=groups[0])
    dist.broadcast_object_list(first, 0, group=groups[0])
    dist.scatter_object_list(one, [str(r) for r in ranks], 0, group=groups[0])
    assert everyone == [{"rank": r} for r in ranks]
    assert (first, one) == ([{"of": 0}], [str(rank)])
