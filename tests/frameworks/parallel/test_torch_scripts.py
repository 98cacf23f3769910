"""Scripts that change param_groups, gradients or requires_grad, as PyTorch allows."""

import pytest
import torch
from torch_tensors import same_everywhere

import hvdlite.torch as hvd

OPS = pytest.mark.parametrize("op", [hvd.Average, hvd.Adasum])


def weight() -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.zeros(3))


def distributed(*params, **options):
    plain = torch.optim.SGD([{"params": [param]} for param in params], 1.0)
    return hvd.DistributedOptimizer(plain, **options), plain


def step(optimizer, rank, *params) -> None:
    optimizer.zero_grad()
    (sum(params) * (rank + 1)).sum().backward()
    optimizer.step()


def append(_optimizer, plain, param) -> None:
    plain.param_groups[0]["params"].append(param)


def replace(optimizer, _plain, param) -> None:
    optimizer.param_groups[0]["params"] = [param]


def add_to_the_given(_optimizer, plain, param) -> None:
    plain.add_param_group({"params": [param]})


def add_after_a_removal(optimizer, _plain, param) -> None:
    del optimizer.param_groups[0]
    optimizer.add_param_group({"params": [param]})


@OPS
@pytest.mark.parametrize("add", [append, replace, add_to_the_given, add_after_a_removal])
@pytest.mark.parametrize("used", [0, 2])
def test_a_parameter_added_to_the_optimizer_in_any_way_is_averaged(used, add, op, rank):
    first, second, later = weight(), weight(), weight()
    optimizer, plain = distributed(first, second, op=op)
    for _ in range(used):
        step(optimizer, rank, first, second)
    add(optimizer, plain, later)
    for _ in range(2):
        step(optimizer, rank, first, second, later)
    assert same_everywhere(first, second, later)
    assert (later < 0).all()
    assert len(set(optimizer._parameter_names.values())) == 3


def test_a_parameter_added_between_the_passes_of_a_step_is_averaged(rank, size):
    first, later = weight(), weight()
    optimizer, plain = distributed(first, backward_passes_per_step=2)
    step(optimizer, rank, first)
    optimizer.zero_grad()
    ((first + later) * (rank + 1)).sum().backward()
    append(optimizer, plain, later)
    ((first + later) * (rank + 1)).sum().backward()
    optimizer.step()
    assert later.tolist() == [-(size + 1)] * 3
    assert same_everywhere(first, later)


def drop_gradient(param) -> None:
    param.grad = None


def replace_gradient(param) -> None:
    param.grad = param.grad / 2


@pytest.mark.parametrize("change", [drop_gradient, replace_gradient])
def test_a_gradient_replaced_while_it_is_averaged_is_an_error(change, rank):
    """Otherwise step() would use this rank's own gradient or none, and the weights would differ."""
    param = weight()
    optimizer, _ = distributed(param)
    step(optimizer, rank, param)
    before = param.detach().clone()
    (param * (rank + 1)).sum().backward()
    change(param)
    with pytest.raises(RuntimeError, match="between backward and step.., .*call synchronize()"):
        optimizer.step()
    assert torch.equal(param, before)
    step(optimizer, rank, param)
    assert same_everywhere(param)


@OPS
@pytest.mark.parametrize("closure", [False, True])
def test_a_step_of_the_wrapped_optimizer_before_averaging_is_refused(closure, op, rank):
    param = weight()
    optimizer, plain = distributed(param, op=op)
    if op == hvd.Average:
        plain.step()  # allowed without gradients: scripts create the states in this way
    (param * (rank + 1)).sum().backward()
    with pytest.raises(RuntimeError, match="called on the plain SGD that was given to"):
        plain.step((lambda: param.sum()) if closure else None)
    optimizer.step()
    assert same_everywhere(param)


def test_after_synchronize_the_wrapped_optimizer_steps_with_averages(rank, size):
    param = weight()
    optimizer, plain = distributed(param)
    (param * (rank + 1)).sum().backward()
    optimizer.synchronize()
    plain.step()
    assert param.tolist() == [-(size + 1) / 2] * 3


def test_gradients_that_a_script_keeps_are_not_overwritten(rank, size):
    """A script may keep gradients, for example, to compare gradients of several losses."""
    params, kept = [weight(), weight()], []
    optimizer, _ = distributed(*params)
    for number in range(4):
        optimizer.zero_grad()
        (sum(params) * (rank + 1) * 10**number).sum().backward()
        optimizer.synchronize()
        kept.append([param.grad for param in params])
    expected = [[[10**number * (size + 1) / 2] * 3] * 2 for number in range(4)]
    assert [[grad.tolist() for grad in grads] for grads in kept] == expected


def test_param_grad_read_before_synchronize_shows_the_average(rank, size):
    """A function may take the gradient before the average and clip it later."""
    param = weight()
    optimizer, _ = distributed(param)
    for number in range(1, 4):
        optimizer.zero_grad()
        (param * (rank + 1)).sum().backward()
        taken = param.grad
        optimizer.synchronize()
        assert taken.tolist() == [(size + 1) / 2] * 3
        taken.mul_(0.5)
        with optimizer.skip_synchronize():
            optimizer.step()
        assert param.tolist() == [-number * (size + 1) / 4] * 3


def test_a_parameter_frozen_between_backward_and_step_is_still_updated(rank, size):
    param = weight()
    optimizer, _ = distributed(param)
    for number in range(1, 4):
        param.requires_grad_(True)
        optimizer.zero_grad()
        (param * (rank + 1)).sum().backward()
        param.requires_grad_(False)
        optimizer.step()
        assert param.tolist() == [-number * (size + 1) / 2] * 3


def test_two_parameters_that_share_a_gradient_array_train_right(rank, size):
    params = [weight(), weight()]
    optimizer, _ = distributed(*params)
    for number in range(1, 4):
        optimizer.zero_grad()
        params[0].grad = params[1].grad = torch.full((3,), rank + 1.0)
        optimizer.step()
        assert [each.tolist() for each in params] == [[-number * (size + 1) / 2] * 3] * 2
