"""Gradients through collectives, of Horovod's scale."""

import pytest
import torch
from torch_tensors import same_everywhere

import hvdlite.torch as hvd


def leaf(*shape) -> torch.Tensor:
    return torch.ones(shape, requires_grad=True)


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


def test_without_grad_nothing_is_recorded():
    tensor = leaf(3)
    with torch.no_grad():
        assert not hvd.allreduce(tensor).requires_grad
    assert not hvd.synchronize(hvd.allreduce_async(tensor)).requires_grad
