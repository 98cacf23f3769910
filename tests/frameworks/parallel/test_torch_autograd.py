"""Gradients through collectives, of Horovod's scale."""

import pytest
import torch
from torch_tensors import same_everywhere

import hvdlite.torch as hvd


def leaf(*shape) -> torch.Tensor:
    return torch.ones(shape, requires_grad=True)


def weights(rank: int, *shape) -> torch.Tensor:
    """What a rank's loss multiplies results by: their gradient there."""
    return torch.full(shape, float(rank + 1))


@pytest.mark.parametrize("op", ["Sum", "Average"])
def test_allreduce(op, rank, size):
    tensor = leaf(4)
    (hvd.allreduce(tensor, op=getattr(hvd, op)) * weights(rank, 4)).sum().backward()
    total = sum(range(1, size + 1))
    assert tensor.grad.tolist() == pytest.approx([total if op == "Sum" else total / size] * 4)
    assert same_everywhere(tensor.grad)


def test_allreduce_with_scales_and_compression(rank, size):
    tensor = leaf(4)
    out = hvd.allreduce(tensor, op=hvd.Sum, prescale_factor=3.0, compression=hvd.Compression.fp16)
    out.sum().backward()
    assert tensor.grad.tolist() == [3 * size] * 4


def test_grouped_allreduce(rank, size):
    first, second = leaf(3), leaf(2, 2)
    one, two = hvd.grouped_allreduce([first, second], op=hvd.Sum)
    (one.sum() + 2 * two.sum()).backward()
    assert first.grad.tolist() == [size] * 3
    assert second.grad.flatten().tolist() == [2 * size] * 4


def test_broadcast(rank, size):
    tensor = leaf(3)
    (hvd.broadcast(tensor, size - 1) * weights(rank, 3)).sum().backward()
    mean = sum(range(1, size + 1)) / size
    assert tensor.grad.tolist() == pytest.approx([mean if rank == size - 1 else 0] * 3)


def test_allgather_of_uneven_parts(rank, size):
    tensor = leaf(rank + 1, 2)
    out = hvd.allgather(tensor)
    (out * weights(rank, *out.shape)).sum().backward()
    mean = sum(range(1, size + 1)) / size
    assert tensor.grad.shape == tensor.shape
    assert tensor.grad.flatten().tolist() == pytest.approx([mean] * tensor.numel())


def test_alltoall_with_rows_that_stay(rank, size):
    tensor = leaf(2 * size + 1, 2)
    out, _ = hvd.alltoall(tensor, splits=[2] * size)
    (out * weights(rank, *out.shape)).sum().backward()
    expected = [r + 1 for r in range(size) for _ in range(2)] + [0]
    assert tensor.grad[:, 1].tolist() == expected


@pytest.mark.parametrize("op, factor", [("Sum", True), ("Average", False)])
def test_reducescatter(op, factor, rank, size):
    tensor = leaf(size, 2)
    out = hvd.reducescatter(tensor, op=getattr(hvd, op))
    (out * weights(rank, *out.shape)).sum().backward()
    scale = size if factor else 1
    assert tensor.grad[:, 0].tolist() == [scale * (r + 1) for r in range(size)]


def test_through_twice_and_into_a_layer_before(rank, size):
    tensor = leaf(3)
    hidden = (2 * tensor).square()
    hvd.allreduce(hvd.allreduce(hidden, op=hvd.Sum), op=hvd.Average).sum().backward()
    assert tensor.grad.tolist() == pytest.approx([8.0 * size] * 3)


def test_min_has_no_gradient(rank):
    out = hvd.allreduce(leaf(3), op=hvd.Min)
    with pytest.raises(ValueError, match="only op Sum and Average have a gradient"):
        out.sum().backward()


def test_without_grad_nothing_is_recorded():
    tensor = leaf(3)
    with torch.no_grad():
        assert not hvd.allreduce(tensor).requires_grad
    assert not hvd.synchronize(hvd.allreduce_async(tensor)).requires_grad
