"""States of optimizers that are saved and loaded: on one rank alone, compressed, within a step."""

import copy
import warnings

import pytest
import torch
from torch_tensors import batch_of, difference, loss_of, multilayer, same_everywhere

import hvdlite.torch as hvd


def momentum_of(model, **options):
    plain = torch.optim.SGD(model.parameters(), 0.1, 0.9)
    return hvd.DistributedOptimizer(plain, model.named_parameters(), **options)


def step(model, optimizer, rank, number) -> None:
    optimizer.zero_grad()
    loss_of(model, batch_of(rank, number)).backward()
    optimizer.step()


@pytest.mark.parametrize("options", [{}, {"compression": hvd.Compression.one_bit()}], ids=str)
@pytest.mark.parametrize("when", ["before the first step", "later", "before it is distributed"])
def test_states_that_one_rank_alone_has_loaded(when, options, rank, several):
    """Before, that rank applied the same gradients in another way."""
    model, other = multilayer(), multilayer()
    trained = momentum_of(other, **options)
    step(other, trained, rank, 0)
    states = trained.state_dict()
    plain = torch.optim.SGD(model.parameters(), 0.1, 0.9)
    if when == "before it is distributed" and rank == 1:
        plain.load_state_dict(states)
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), **options)
    for number in range(3 if when == "later" else 0):
        step(model, optimizer, rank, number)
    if when != "before it is distributed" and rank == 1:
        optimizer.load_state_dict(states)
    before = [param.detach().clone() for param in model.parameters()]
    with pytest.raises(hvd.HvdliteError, match="loaded before this step: .*rank 1: those with"):
        step(model, optimizer, rank, 3)
    assert all(map(torch.equal, before, model.parameters()))
    for number in (4, 5):
        hvd.broadcast_optimizer_state(optimizer, root_rank=1)
        step(model, optimizer, rank, number)
    assert same_everywhere(*model.parameters())


def test_the_same_states_loaded_on_every_rank(rank, size):
    """Also while gradients of a step wait, some of which have been sent."""
    model = multilayer()
    optimizer = momentum_of(model)
    for number in range(3):
        step(model, optimizer, rank, number)
        optimizer.load_state_dict(optimizer.state_dict())
    loss_of(model, batch_of(rank, 3)).backward()
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.step()
    for number in (4, 5):
        step(model, optimizer, rank, number)
    assert same_everywhere(*model.parameters())


@pytest.mark.parametrize("new_layout", [False, True])
@pytest.mark.parametrize("codec", ["one_bit", "two_bit", "top_k"])
def test_what_compression_left_out_is_saved(codec, new_layout, rank, size):
    """Training from saved states is that which goes on; also after a new layout of gradients."""
    options = {"compression": getattr(hvd.Compression, codec)()}
    model, again = multilayer(), multilayer()
    optimizer = momentum_of(model, **options)
    for number in range(3):
        step(model, optimizer, rank, number)
    again.load_state_dict(model.state_dict())
    resumed = momentum_of(again, **options)
    states = copy.deepcopy(optimizer.state_dict())  # PyTorch shares what it loads
    assert any(left.any() for left in states["hvdlite_left_out"]["left_out"].values())
    resumed.load_state_dict(states)
    if new_layout:
        late = torch.nn.Parameter(torch.zeros(3))
        resumed.add_param_group({"params": [late]})
    for number in range(3, 6):
        step(model, optimizer, rank, number)
        step(again, resumed, rank, number)
    assert difference(model, again) == 0


def test_what_another_rank_left_out_is_not_taken(rank, several):
    model = multilayer()
    optimizer = momentum_of(model, compression=hvd.Compression.one_bit())
    step(model, optimizer, rank, 0)
    states = hvd.broadcast_object(optimizer.state_dict(), 0)
    again = momentum_of(model, compression=hvd.Compression.one_bit())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        again.load_state_dict(states)
    texts = [str(each.message) for each in caught]
    assert any("save the optimizer's states on every rank" in text for text in texts) == (rank != 0)


def test_a_step_that_has_begun_is_not_saved(rank, size):
    """Its gradients are in no states: training from those would lose them."""
    model = multilayer()
    optimizer = momentum_of(model, backward_passes_per_step=2)
    loss_of(model, batch_of(rank, 0)).backward()
    with pytest.raises(RuntimeError, match="some of a step's 2 passes.*save after the step"):
        optimizer.state_dict()
    loss_of(model, batch_of(rank, 1)).backward()
    optimizer.step()
    assert optimizer.state_dict()["state"]


@pytest.mark.parametrize("op", [hvd.Sum, hvd.Average])
def test_groups_are_read_within_a_step(op, rank, size):
    """As a progress bar reads the learning rate: before, it averaged, and sums were made twice."""
    model, expected = multilayer(), multilayer()
    optimizer = momentum_of(model, backward_passes_per_step=2, op=op)
    plain = torch.optim.SGD(expected.parameters(), 0.1, 0.9)
    for number in range(3):
        optimizer.zero_grad()
        plain.zero_grad()
        if number == 1:  # given up
            loss_of(model, batch_of(rank, 9)).backward()
            optimizer.zero_grad()
        for each in (2 * number, 2 * number + 1):
            loss_of(model, batch_of(rank, each)).backward()
            assert optimizer.param_groups[0]["lr"] == 0.1
            for other in range(size):
                loss = loss_of(expected, batch_of(other, each))
                (loss if op == hvd.Sum else loss / size).backward()
        optimizer.step()
        plain.step()
    assert difference(model, expected) < 1e-5 * size
