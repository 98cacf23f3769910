"""Gradients through collectives, of Horovod's scale."""

import pytest
import torch
from finite_differences import check_gradient, every_case
from torch_tensors import same_everywhere

import hvdlite.torch as hvd


def leaf(*shape) -> torch.Tensor:
    return torch.ones(shape, requires_grad=True)


@every_case
def test_gradients_are_those_of_finite_differences(verb, options, rank, size):
    def differentiate(verb, values, options, weight):
        x = torch.from_numpy(values).requires_grad_()
        y = getattr(hvd, verb)([x, 2 * x] if verb.startswith("grouped") else x, **options)
        outs = y if isinstance(y, list) else y[:1] if isinstance(y, tuple) else [y]
        loss = sum((out * torch.from_numpy(weight(out.shape))).sum() for out in outs)
        loss.backward()
        return loss.item(), x.grad.numpy()

    check_gradient(differentiate, verb, options, rank, size)


def test_the_gradient_is_the_same_on_all_ranks():
    tensor = leaf(4)
    hvd.allreduce(tensor).square().sum().backward()
    assert same_everywhere(tensor.grad)


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


def test_min_has_no_gradient(rank):
    out = hvd.allreduce(leaf(3), op=hvd.Min)
    with pytest.raises(ValueError, match="op Min has no gradient: expected Sum or Average"):
        out.sum().backward()


def test_without_grad_nothing_is_recorded():
    tensor = leaf(3)
    with torch.no_grad():
        assert not hvd.allreduce(tensor).requires_grad
    assert not hvd.synchronize(hvd.allreduce_async(tensor)).requires_grad
