"""Hooks by which backward reports gradients to the distributed optimizer of PyTorch."""

import gc
import sys
import weakref

import pytest
import torch
from torch_tensors import same_everywhere

import hvdlite.torch as hvd

N = 100  # number of parameters


def parameters() -> list:
    return [torch.nn.Parameter(torch.ones(3)) for _ in range(N)]


def distributed(params, **options):
    return hvd.DistributedOptimizer(torch.optim.SGD(params, 1.0), num_groups=2, **options)


def step(params, optimizer, factor) -> None:
    """Do all parts of a step except the update. Backward reaches the last parameter first."""
    optimizer.zero_grad()
    sum_of(params, factor).backward()


def sum_of(params, factor) -> torch.Tensor:
    total = torch.zeros(())
    for param in params:
        total = total + (param * factor).sum()
    return total


def test_each_small_gradient_costs_less_than_one_python_call(rank):
    params, calls = parameters(), []
    optimizer = distributed(params)
    for _ in range(3):
        step(params, optimizer, rank)
        optimizer.step()
    optimizer.zero_grad()
    total = sum_of(params, rank)
    sys.setprofile(lambda frame, event, _arg: event == "call" and calls.append(frame.f_code))
    total.backward()
    sys.setprofile(None)
    optimizer.step()
    assert len(calls) < N, calls
    assert same_everywhere(*params)


def test_allreduces_overlap_backward_again_after_the_order_has_changed(rank, size):
    params = parameters()
    optimizer = distributed(params)
    begun = []
    for number in range(6):
        order = params if number < 3 else params[::-1]
        step(order, optimizer, (rank + 1) * (number + 1))
        begun.append(sum(bool(each.started) for each in optimizer._gradients._buckets or ()))
        optimizer.step()
        for param in params:
            assert param.grad.tolist() == [(size + 1) / 2 * (number + 1)] * 3
    assert begun == [0, 2, 2, 0, 2, 2]


@pytest.mark.parametrize("which", [0, N // 4, -1])
def test_the_error_names_a_gradient_that_is_computed_too_often(which):
    params = parameters()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(params, 1.0), [(f"p{i}", p) for i, p in enumerate(params)], num_groups=2
    )
    for number in range(3):
        step(params, optimizer, 1)
        if number < 2:
            optimizer.step()
    with pytest.raises(RuntimeError, match=f"'p{which % N}' was computed more than"):
        params[which].sum().backward()
        optimizer.step()
    optimizer.synchronize()
    step(params, optimizer, 2)
    optimizer.step()
    assert params[which].grad.tolist() == [2] * 3


def test_a_deleted_optimizer_leaves_no_hook_and_keeps_no_parameter(rank):
    params = parameters()
    optimizer = distributed(params)
    for _ in range(2):
        step(params, optimizer, rank)
        optimizer.step()
    del optimizer
    gc.collect()
    assert not any(param._post_accumulate_grad_hooks for param in params)
    kept = [weakref.ref(param) for param in params]
    optimizer = distributed(params)
    step(params, optimizer, rank)
    del optimizer, params
    gc.collect()
    assert not any(ref() is not None for ref in kept)
