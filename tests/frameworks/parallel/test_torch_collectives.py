"""Collectives of hvdlite.torch: strides, shared memory, staged and sparse tensors, autograd."""

import pytest
import torch

import hvdlite.torch as hvd
from hvdlite.torch import exchange, tensors


def test_tensors_of_any_strides_are_reduced(rank, size):
    whole = torch.arange(24.0).view(4, 6) * (rank + 1)
    expected = torch.arange(24.0).view(4, 6) * sum(range(1, size + 1))
    assert torch.equal(hvd.allreduce(whole.t(), op=hvd.Sum), expected.t())
    assert torch.equal(hvd.allreduce(whole[:, ::2], op=hvd.Sum), expected[:, ::2])
    hvd.allreduce_(whole[:, 1:3], op=hvd.Sum)
    assert torch.equal(whole[:, 1:3], expected[:, 1:3])
    # the allreduce has changed no other column
    assert torch.equal(whole[:, 0], torch.arange(0.0, 24, 6) * (rank + 1))


def test_tensors_of_one_call_that_share_memory_are_summed_right(rank, size):
    """A tensor's sum must not include partial results of another tensor in the same memory."""
    for number in range(5):
        whole = torch.full((100_000,), rank + 1.0)
        given = [whole, whole[:60_000], whole[40_000:], whole]
        results = hvd.grouped_allreduce_(given, op=hvd.Sum, name=f"shared{number}")
        assert all((each == sum(range(1, size + 1))).all() for each in [whole, *results])


def test_alltoall_takes_its_splits_in_a_tensor(rank, size):
    rows = torch.arange(2 * size) + 100 * rank
    result, _ = hvd.alltoall(rows, splits=torch.full((size,), 2))
    assert result.tolist() == [100 * r + 2 * rank + i for r in range(size) for i in range(2)]


def test_tensors_on_a_gpu_pass_through_the_host(rank, size, monkeypatch):
    """hvdlite treats CPU tensors like GPU tensors here; only copies to a GPU are missing."""
    for module in (tensors, exchange):
        monkeypatch.setattr(module, "is_staged", lambda tensor: True)
    x, total = torch.full((size, 2), rank + 1.0), size * (size + 1) / 2
    assert (hvd.allreduce(x, op=hvd.Sum) == total).all()
    assert (hvd.reducescatter(x, op=hvd.Sum) == total).all()
    everyone = torch.arange(1.0, size + 1)
    assert torch.equal(hvd.allgather(x[:1])[:, 0], everyone)
    assert torch.equal(hvd.alltoall(x, splits=[1] * size)[0][:, 0], everyone)
    assert (hvd.broadcast(x, size - 1) == size).all()
    assert (x == rank + 1).all()
    hvd.broadcast_parameters({"x": x}, size - 1)
    assert (x == size).all()
    assert (hvd.allreduce_(x, op=hvd.Sum) == size * size).all() and x[0, 0] == size * size


def test_sparse_torch_tensors_are_summed(rank, size):
    indices = torch.tensor([[0, rank + 1]])
    values, shape = torch.ones(2, 3), (size + 1, 3)
    tensor = torch.sparse_coo_tensor(indices, values, shape, check_invariants=True)
    handle = hvd.sparse_allreduce_async(tensor, name="rows", op=hvd.Average)
    expected = torch.full((size + 1, 3), 1 / size)
    expected[0] = 1
    assert torch.allclose(hvd.synchronize(handle).to_dense(), expected)
    again = hvd.sparse_allreduce_async(tensor, name="rows", op=hvd.Sum)
    assert torch.allclose(again().to_dense(), expected * size)


def test_sparse_tensors_of_different_shapes_or_ops_are_refused_on_every_rank(rank, several):
    odd = rank == 1
    for rows, op in (4 if odd else 3, hvd.Sum), (3, hvd.Average if odd else hvd.Sum):
        tensor = torch.ones(rows, 2).to_sparse(1)
        handle = hvd.sparse_allreduce_async(tensor, name="odd", op=op)
        with pytest.raises(hvd.HorovodInternalError, match=r"disagree on the call: .*\(3, 2\)"):
            handle.synchronize()


# ---- gradients that tests/contract does not test ----


def leaf(*shape) -> torch.Tensor:
    return torch.ones(shape, requires_grad=True)


def test_allreduce_applies_scales_and_compression(rank, size):
    tensor = leaf(4)
    out = hvd.allreduce(tensor, op=hvd.Sum, prescale_factor=3.0, compression=hvd.Compression.fp16)
    out.sum().backward()
    assert tensor.grad.tolist() == [3 * size] * 4


def test_collectives_under_no_grad_and_async_collectives_have_no_gradient():
    tensor = leaf(3)
    with torch.no_grad():
        assert not hvd.allreduce(tensor).requires_grad
    assert not hvd.synchronize(hvd.allreduce_async(tensor)).requires_grad


class _AsPairs:
    compress = staticmethod(lambda tensor: (torch.view_as_real(tensor).clone(), None))
    decompress = staticmethod(lambda tensor, _context: torch.view_as_complex(tensor))


def test_repeated_compressed_calls_give_right_results(rank, size):
    for _ in range(3):
        tensor = torch.full((3,), complex(rank, 1))
        out = hvd.allreduce(tensor, name="pairs", op=hvd.Sum, compression=_AsPairs)
        assert out.tolist() == [complex(size * (size - 1) / 2, size)] * 3


def _saved_by_autograd(x):
    """Return a tensor that autograd has saved, and the loss whose backward needs it."""
    kept = x * 1
    return kept.detach(), (kept * kept).sum()


IN_PLACE = {
    "allreduce_": hvd.allreduce_,
    "allreduce_async_": lambda x, name: hvd.synchronize(hvd.allreduce_async_(x, name=name)),
    "grouped_allreduce_": lambda x, name: hvd.grouped_allreduce_([x], name=name),
    "broadcast_": lambda x, name: hvd.broadcast_(x, 0, name=name),
    "broadcast_parameters": lambda x, name: hvd.broadcast_parameters([x], 0),
    "allreduce_plan": lambda x, name: hvd.allreduce_plan(torch.ones(2), name=name, out=x)(),
}


@pytest.mark.parametrize("verb", IN_PLACE)
def test_backward_refuses_a_saved_tensor_that_a_collective_overwrote(verb):
    """With the new values, backward would silently compute wrong gradients."""
    for _ in range(4):  # hvdlite prepares a call whose name repeats: later calls run other code
        kept, loss = _saved_by_autograd(torch.ones(2, requires_grad=True))
        IN_PLACE[verb](kept, name=verb)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_tensors_of_inference_mode_are_reduced_in_place(rank, size):
    """PyTorch keeps no version counter for tensors of inference mode."""
    with torch.inference_mode():
        x = torch.full((2,), rank + 1.0)
    for _ in range(4):
        with torch.inference_mode():
            x.fill_(rank + 1.0)
        assert hvd.allreduce_(x, op=hvd.Sum, name="inference")[0] == sum(range(1, size + 1))
