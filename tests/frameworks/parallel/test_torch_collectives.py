"""Every collective on PyTorch tensors: every dtype, in place or not, with a handle or without."""

import pytest
import torch
from threads import outcomes

import hvdlite.torch as hvd


def equal(result, expected) -> bool:
    return torch.equal(result.to(expected.dtype), expected)


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


def test_splits_in_a_tensor(rank, size):
    rows = torch.arange(2 * size) + 100 * rank
    result, _ = hvd.alltoall(rows, splits=torch.full((size,), 2))
    assert result.tolist() == [100 * r + 2 * rank + i for r in range(size) for i in range(2)]


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


# ---- gradients, beside those of tests/contract ----


def leaf(*shape) -> torch.Tensor:
    return torch.ones(shape, requires_grad=True)


def test_allreduce_with_scales_and_compression(rank, size):
    tensor = leaf(4)
    out = hvd.allreduce(tensor, op=hvd.Sum, prescale_factor=3.0, compression=hvd.Compression.fp16)
    out.sum().backward()
    assert tensor.grad.tolist() == [3 * size] * 4


def test_through_twice_and_into_a_layer_before(rank, size):
    tensor = leaf(3)
    hidden = (2 * tensor).square()
    hvd.allreduce(hvd.allreduce(hidden, op=hvd.Sum), op=hvd.Average).sum().backward()
    assert tensor.grad.tolist() == pytest.approx([8.0 * size] * 3)


def test_without_grad_nothing_is_recorded():
    tensor = leaf(3)
    with torch.no_grad():
        assert not hvd.allreduce(tensor).requires_grad
    assert not hvd.synchronize(hvd.allreduce_async(tensor)).requires_grad
