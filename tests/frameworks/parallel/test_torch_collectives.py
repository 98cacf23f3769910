"""Every collective on PyTorch tensors: every dtype, in place or not, with a handle or without."""

import pytest
import torch
from threads import outcomes
from torch_tensors import (
    DTYPES,
    FLOATS,
    INTEGERS,
    SHAPES,
    of_all_ranks,
    same_everywhere,
    whole_numbers,
)

import hvdlite.torch as hvd

every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def equal(result, expected) -> bool:
    return torch.equal(result.to(expected.dtype), expected)


@every_dtype
def test_sum_is_exact_and_the_same_everywhere(dtype, rank):
    for shape in SHAPES:
        tensor = whole_numbers(dtype, shape, rank)
        result = hvd.allreduce(tensor, op=hvd.Sum)
        assert result.dtype == dtype
        assert result.shape == torch.Size(shape)
        assert equal(result, of_all_ranks(dtype, shape).sum(0))
        assert same_everywhere(result)
        assert torch.equal(tensor, whole_numbers(dtype, shape, rank))  # it stays as it is


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_average_and_scales(dtype, rank, size):
    tensor = whole_numbers(dtype, (17,), rank)
    result = hvd.allreduce(tensor, prescale_factor=2.0, postscale_factor=0.5)
    expected = of_all_ranks(dtype, (17,)).mean(0)
    bound = 8 * torch.finfo(dtype).eps
    assert torch.allclose(result.double(), expected, rtol=bound, atol=bound)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_average_of_integers_is_divided_toward_zero(dtype, rank, size):
    result = hvd.allreduce(whole_numbers(dtype, (17,), rank))
    total = of_all_ranks(dtype, (17,)).sum(0)
    assert equal(result, torch.div(total, size, rounding_mode="trunc"))


@every_dtype
def test_min_max_and_product(dtype, rank):
    tensor = whole_numbers(dtype, (17,), rank).clamp(max=3)
    everyone = of_all_ranks(dtype, (17,)).clamp(max=3)
    assert equal(hvd.allreduce(tensor, op=hvd.Min), everyone.amin(0))
    assert equal(hvd.allreduce(tensor, op=hvd.Max), everyone.amax(0))
    small = tensor.clamp(min=0)
    assert equal(hvd.allreduce(small, op=hvd.Product), everyone.clamp(min=0).prod(0))


def test_bool_is_or_and_and(rank, size):
    tensor = torch.tensor([rank == 0, True, False])
    assert hvd.allreduce(tensor, op=hvd.Sum).tolist() == [True, True, False]
    assert hvd.allreduce(tensor, op=hvd.Min).tolist() == [size == 1, True, False]


def test_in_place_writes_where_the_tensor_is(rank, size):
    tensor = torch.full((3, 4), float(rank))
    assert hvd.allreduce_(tensor, op=hvd.Sum) is tensor
    assert (tensor == sum(range(size))).all()
    several = [torch.full((3,), float(rank)), torch.full((2, 2), rank)]
    assert hvd.grouped_allreduce_(several, op=hvd.Sum)[1] is several[1]
    assert all((each == sum(range(size))).all() for each in several)


def test_tensors_of_any_strides(rank, size):
    whole = torch.arange(24.0).view(4, 6) * (rank + 1)
    expected = torch.arange(24.0).view(4, 6) * sum(range(1, size + 1))
    assert torch.equal(hvd.allreduce(whole.t(), op=hvd.Sum), expected.t())
    assert torch.equal(hvd.allreduce(whole[:, ::2], op=hvd.Sum), expected[:, ::2])
    hvd.allreduce_(whole[:, 1:3], op=hvd.Sum)
    assert torch.equal(whole[:, 1:3], expected[:, 1:3])
    assert torch.equal(whole[:, 0], torch.arange(0.0, 24, 6) * (rank + 1))  # no other column


def test_a_parameter_that_wants_a_gradient_is_written_in_place(rank):
    param = torch.nn.Parameter(torch.full((3,), float(rank)))
    hvd.broadcast_(param, 0)
    assert param.tolist() == [0, 0, 0]
    assert param.requires_grad


def test_handles(rank, size):
    handles = [hvd.allreduce_async(torch.full((5,), float(rank)), name=f"h{i}") for i in range(9)]
    results = [hvd.synchronize(handle) for handle in reversed(handles)]
    assert all(hvd.poll(handle) for handle in handles)
    assert all((result == (size - 1) / 2).all() for result in results)
    grouped = hvd.grouped_allreduce_async([torch.ones(2), torch.ones(3)], op=hvd.Sum)
    assert [each.tolist() for each in hvd.synchronize(grouped)] == [[size] * 2, [size] * 3]
    in_place = torch.ones(2)
    assert hvd.synchronize(hvd.allreduce_async_(in_place, op=hvd.Sum)) is in_place


def start_both(name: str, rank: int, size: int) -> list:
    rows = torch.full((rank + 1,), float(rank))
    splits = [rank + 1] + [0] * (size - 1)
    return [
        hvd.allgather_async(rows, name=f"{name}.rows"),
        hvd.alltoall_async(rows, splits, name=f"{name}.parts"),
        hvd.grouped_allgather_async([rows, rows], name=f"{name}.group"),
    ]


def check_both(results: list, rank: int, size: int) -> None:
    everything = [float(r) for r in range(size) for _ in range(r + 1)]
    rows, (parts, counts), group = results
    assert [each.tolist() for each in (rows, *group)] == [everything] * 3
    assert parts.tolist() == (everything if rank == 0 else [])
    assert counts.tolist() == ([r + 1 for r in range(size)] if rank == 0 else [0] * size)


def test_a_call_does_not_wait_for_the_rows_of_others(rank, size):
    handles = start_both("early", rank, size) if rank == 0 else []
    assert size == 1 or not any(map(hvd.poll, handles))
    hvd.allreduce(torch.ones(1), name="the others may start, too")
    handles = handles or start_both("early", rank, size)
    check_both([hvd.synchronize(handle) for handle in handles], rank, size)
    assert all(map(hvd.poll, handles))


def test_threads_that_share_handles_get_the_same_results(rank, size):
    for i in range(10):
        kept = [torch.full((3,), float(rank)) for _ in range(50)]
        sparse = torch.eye(3).to_sparse()
        handles = [hvd.allreduce_async_(x, name=f"k{n}", op=hvd.Sum) for n, x in enumerate(kept)]
        handles += [hvd.sparse_allreduce_async(sparse, f"s{n}", hvd.Sum) for n in range(20)]
        handles += start_both("shared", rank, size)
        handles += [hvd.allreduce_async(torch.ones(1 + (rank == 0)), name="w")] if size > 1 else []
        results = outcomes(handles)
        assert all(x is result for x, result in zip(kept, results))
        assert all(x.tolist() == [sum(range(size))] * 3 for x in kept), i
        assert all(equal(each.to_dense(), torch.eye(3) * size) for each in results[50:70])
        check_both(results[70:73], rank, size)
        for error in results[73:]:
            assert isinstance(error, hvd.HvdliteError)
            assert "ranks disagree on the shape" in str(error)


def test_ranks_wait_for_handles_in_different_orders(rank, size):
    handles = start_both("order", rank, size)
    waited = {}
    for i in [2, 1, 0] if rank % 2 else [0, 1, 2]:
        waited[i] = hvd.synchronize(handles[i])
        if i == rank % 3:
            hvd.allreduce(torch.ones(1), name="between")
    check_both([waited[i] for i in range(3)], rank, size)


def test_what_is_wrong_with_a_split_is_raised_where_it_is_waited_for(rank, size):
    handle = hvd.alltoall_async(torch.ones(2), [3] * size if rank == size - 1 else None)
    with pytest.raises(ValueError, match=f"rank {size - 1}: .*splits"):
        hvd.synchronize(handle)


def test_an_unnamed_tensor_is_named_after_the_line_that_starts_it(rank, size):
    handle = hvd.allreduce_async(torch.zeros(rank + 1), None, None, hvd.Sum)
    if size > 1:
        with pytest.raises(hvd.HvdliteError, match="allreduce.test_torch_collectives.py:"):
            handle.synchronize()
    else:
        assert handle.synchronize() == 0


def test_grouped_allreduce(rank, size):
    tensors = [torch.full((n,), float(rank)) for n in (1, 5, 0, 1000)]
    for tensor, result in zip(tensors, hvd.grouped_allreduce(tensors, op=hvd.Sum)):
        assert torch.equal(result, torch.full_like(tensor, sum(range(size))))
    assert hvd.grouped_allreduce([]) == []


@every_dtype
def test_broadcast_from_each_root(dtype, rank, size):
    for root in range(size):
        tensor = whole_numbers(dtype, (3, 5), rank)
        result = hvd.broadcast(tensor, root)
        assert torch.equal(result, whole_numbers(dtype, (3, 5), root))
        assert torch.equal(tensor, whole_numbers(dtype, (3, 5), rank))


@every_dtype
def test_allgather_of_uneven_parts(dtype, rank, size):
    result = hvd.allgather(whole_numbers(dtype, (rank, 3), rank))
    assert torch.equal(result, torch.cat([whole_numbers(dtype, (r, 3), r) for r in range(size)]))
    assert hvd.allgather(torch.tensor(rank, dtype=dtype)).tolist() == list(range(size))


def test_grouped_allgather(rank, size):
    first, second = hvd.grouped_allgather([torch.ones(rank + 1), torch.full((1, 2), rank)])
    assert len(first) == sum(range(1, size + 1))
    assert second[:, 1].tolist() == list(range(size))
    handle = hvd.grouped_allgather_async([torch.ones(2)], name="again")
    assert len(hvd.synchronize(handle)[0]) == 2 * size


@every_dtype
def test_alltoall_with_splits(dtype, rank, size):
    splits = list(range(size))  # as many rows to rank r as r says
    result, received = hvd.alltoall(torch.full((sum(splits), 2), rank, dtype=dtype), splits=splits)
    assert received.tolist() == [rank] * size
    assert received.dtype is torch.int32
    assert result[:, 0].tolist() == [r for r in range(size) for _ in range(rank)]


def test_alltoall_of_equal_parts(rank, size):
    rows = torch.arange(2 * size) + 100 * rank
    expected = [100 * r + 2 * rank + i for r in range(size) for i in range(2)]
    assert hvd.alltoall(rows).tolist() == expected
    assert hvd.synchronize(hvd.alltoall_async(rows)).tolist() == expected
    result, _ = hvd.alltoall(rows, splits=torch.full((size,), 2))
    assert result.tolist() == expected


def test_reducescatter(rank, size):
    rows = 2 * size + 1
    tensor = whole_numbers(torch.float32, (rows, 3), rank)
    total = of_all_ranks(torch.float32, (rows, 3)).sum(0)
    first = 0 if rank == 0 else 2 * rank + 1
    expected = total[first : first + 2 + (rank == 0)]
    assert equal(hvd.reducescatter(tensor, op=hvd.Sum), expected)
    several = hvd.grouped_reducescatter([tensor, tensor * 2], op=hvd.Sum)
    assert equal(several[1], 2 * expected)
    assert equal(hvd.synchronize(hvd.reducescatter_async(tensor, op=hvd.Sum)), expected)


@pytest.mark.parametrize("compression", [hvd.Compression.fp16, hvd.Compression.bf16])
def test_compression_of_a_call(compression, rank):
    result = hvd.allreduce(torch.full((9,), float(rank)), compression=compression, op=hvd.Sum)
    assert result.dtype is torch.float32
    assert equal(result, of_all_ranks(torch.float32, (9,))[0] * 0 + sum(range(hvd.size())))


def test_process_sets(rank, size, several):
    ranks = [0, size - 1] if size > 2 else [1]
    process_set = hvd.add_process_set(ranks)
    try:
        if process_set.included():
            result = hvd.allreduce(torch.tensor(rank), op=hvd.Sum, process_set=process_set)
            assert result.item() == size - 1
            assert len(hvd.allgather(torch.ones(1), process_set=process_set)) == len(ranks)
        else:
            with pytest.raises(ValueError, match="only those make the call"):
                hvd.allreduce(torch.tensor(rank), process_set=process_set)
    finally:
        hvd.remove_process_set(process_set)


@pytest.mark.parametrize(
    "tensor, text",
    [
        (torch.ones(3, device="meta"), "takes tensors on CPUs"),
        (torch.eye(3).to_sparse(), "sparse_allreduce_async"),
        (torch.ones(3, dtype=torch.complex64), "complex64 is not supported"),
        ([1.0, 2.0], "expected a torch.Tensor, got list"),
    ],
    ids=["not on a CPU", "sparse", "complex", "no tensor"],
)
def test_what_no_collective_takes(tensor, text):
    calls = (hvd.allreduce, hvd.allreduce_, hvd.allgather, hvd.alltoall, hvd.reducescatter)
    for call in calls:
        with pytest.raises(ValueError, match=text):
            call(tensor, name="bad")
    with pytest.raises(ValueError, match=text):
        hvd.broadcast(tensor, 0, name="bad")
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()  # the job goes on


def test_ranks_that_disagree_are_told_the_tensor_and_both_shapes(rank, several):
    with pytest.raises(hvd.HorovodInternalError, match=r"odd.*: rank 0: \(4,\); rank"):
        hvd.allreduce(torch.ones(3 + (rank == 0)), name="odd")
    dtype = torch.float32 if rank else torch.int16
    with pytest.raises(hvd.HvdliteError, match="int16"):
        hvd.allreduce(torch.ones(3, dtype=dtype), name="odd")


def test_objects_join_and_barrier(rank, size):
    assert hvd.broadcast_object({"rank": rank}, root_rank=size - 1) == {"rank": size - 1}
    assert hvd.allgather_object(rank) == list(range(size))
    for _ in range(rank):  # uneven numbers of batches
        hvd.allreduce(torch.ones(2), name="uneven", op=hvd.Sum)
    assert 0 <= hvd.join() < size
    hvd.barrier()


def test_averages_are_over_the_ranks_that_have_not_joined(rank, size):
    if rank > 0:
        value = torch.tensor([float(rank)])
        assert hvd.allreduce(value, name="average", op=hvd.Average).item() == size / 2
        assert hvd.allreduce(value, name="sum", op=hvd.Sum).item() == size * (size - 1) / 2
    hvd.join()


def test_sparse_allreduce(rank, size):
    indices = torch.tensor([[0, rank + 1]])
    values, shape = torch.ones(2, 3), (size + 1, 3)
    tensor = torch.sparse_coo_tensor(indices, values, shape, check_invariants=True)
    handle = hvd.sparse_allreduce_async(tensor, name="rows", op=hvd.Average)
    expected = torch.full((size + 1, 3), 1 / size)
    expected[0] = 1
    assert torch.allclose(hvd.synchronize(handle).to_dense(), expected)
    again = hvd.sparse_allreduce_async(tensor, name="rows", op=hvd.Sum)
    assert torch.allclose(again().to_dense(), expected * size)
