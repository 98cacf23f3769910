"""Parameters with several optimizers, unused parameters, loaded states, extra optimizers."""

import copy
import gc

import pytest
import torch
from torch_tensors import batch_of, difference, joined_batch, loss_of, multilayer, same_everywhere

import hvdlite.torch as hvd


def sgd(model, name="", **options):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    named = [(f"{name}{key}", param) for key, param in model.named_parameters()]
    return hvd.DistributedOptimizer(optimizer, named, **options)


def steps(model, optimizer, rank, numbers) -> None:
    for step in numbers:
        optimizer.zero_grad()
        loss_of(model, batch_of(rank, step)).backward()
        optimizer.step()


def alone(numbers):
    model = multilayer()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in numbers:
        optimizer.zero_grad()
        loss_of(model, joined_batch(step)).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("call", ["step", "synchronize"])
@pytest.mark.parametrize("used", [0, 2])
def test_an_optimizer_refuses_to_step_after_a_newer_optimizer_has_its_parameters(call, used, rank):
    """A step of the first optimizer would use gradients of this rank alone."""
    model = multilayer()
    first = sgd(model, "a.")
    steps(model, first, rank, range(used))
    second = sgd(model, "b.")
    loss_of(model, batch_of(rank, used)).backward()
    with pytest.raises(
        RuntimeError,
        match=r"parameter 'a\.0\.weight' of optimizer\d+ belongs to optimizer\d+, a newer",
    ):
        getattr(first, call)()
    second.step()
    assert same_everywhere(*model.parameters())


@pytest.mark.parametrize("how", ["kept", "deleted", "in a cycle", "wrapped again"])
def test_each_new_optimizer_of_one_model_trains_right(how, rank, report_parity):
    """A notebook, or a search of learning rates, makes several optimizers of one model."""
    model, optimizers = multilayer(), []
    plain = torch.optim.SGD(model.parameters(), 0.1)
    for phase in range(3):
        if how == "wrapped again":
            optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
        else:
            optimizer = sgd(model)
        optimizers.append(optimizer)
        if how == "in a cycle" and phase % 2 == rank % 2:
            optimizer.self = optimizer
        steps(model, optimizer, rank, range(3 * phase, 3 * phase + 3))
        del optimizer
        if how != "kept":
            optimizers.clear()
    report_parity("PyTorch, one optimizer after another", difference(model, alone(range(9))), 5e-6)
    assert same_everywhere(*model.parameters())


def test_two_optimizers_of_different_models_both_train_right(rank, size):
    """One backward may compute the gradients of both models, for example in a GAN."""
    one, two = multilayer(), copy.deepcopy(multilayer())
    optimizers = sgd(one, "one."), sgd(two, "two.")
    for step in range(3):
        for each in optimizers:
            each.zero_grad()
        (loss_of(one, batch_of(rank, step)) + loss_of(two, batch_of(rank, step))).backward()
        for each in optimizers:
            each.step()
    assert difference(one, alone(range(3))) < 5e-6 and difference(two, one) == 0


def test_with_op_sum_no_second_optimizer_may_be_made_before_the_step(rank):
    """Averaging an average again would do no harm, but sums would be summed twice."""
    model = multilayer()
    first = sgd(model)
    steps(model, first, rank, range(2))
    loss_of(model, batch_of(rank, 2)).backward()
    second = sgd(model)
    model.zero_grad()
    loss_of(model, batch_of(rank, 2)).backward()
    second.step()
    assert difference(model, alone(range(3))) < 5e-6
    del second
    third = sgd(model, op=hvd.Sum)
    loss_of(model, batch_of(rank, 3)).backward()
    with pytest.raises(ValueError, match=r"'0\.weight': backward has written its gradient for"):
        sgd(model, op=hvd.Sum)
    third.step()
    del first, third
    gc.collect()


class Tables(torch.nn.Module):
    """A model with embedding tables, some of which no rank uses at first."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.tables = torch.nn.ModuleList(
            [torch.nn.Embedding(6, 3, sparse=sparse) for _ in range(3)]
        )

    def forward(self, x, used):
        return sum(self.tables[i](x).square().sum() for i in used)


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("as_dense", [False, True])
@pytest.mark.parametrize("sparse", [True, False])
def test_an_embedding_that_no_rank_uses_at_first_is_averaged_later(
    sparse, as_dense, grouped, rank, size
):
    """A table has no gradient, and therefore no update, until a rank uses it."""
    kind = torch.optim.SparseAdam if sparse else torch.optim.AdamW
    model, expected = Tables(sparse), Tables(sparse)
    optimizer, plain = kind(model.parameters(), 0.1), kind(expected.parameters(), 0.1)
    named, weights = model.named_parameters(), [table.weight for table in model.tables]
    groups = [[weights[2].requires_grad_(False), weights[1]], weights[:1]] if grouped else None
    how = {"sparse_as_dense": as_dense, "groups": groups}
    optimizer = hvd.DistributedOptimizer(optimizer, named, **how)
    for step, of_last, of_others in ((0, [0], [0]), (1, [0, 1], [0]), (2, [0, 1, 2], [0, 2])):
        used = [*[of_others] * (size - 1), of_last]
        weights[2].requires_grad_(step > 0)
        optimizer.zero_grad()
        plain.zero_grad()
        model(torch.tensor([rank, step]), used[rank]).backward()
        if step == 0:
            assert model.tables[1].weight.grad is None
        optimizer.step()
        for r in range(size):
            (expected(torch.tensor([r, step]), used[r]) / size).backward()
        plain.step()
        assert difference(model, expected) < 1e-6
        assert (model.tables[2].weight.grad is None) == (step < 2)
    assert same_everywhere(*model.parameters())


@pytest.mark.parametrize("used", [0, 2])
@pytest.mark.parametrize("thaws", [True, False], ids=["thawed", "frozen"])
def test_the_error_names_a_parameter_frozen_or_unfrozen_on_one_rank(thaws, used, rank, several):
    """Without the error, ranks would wait for the gradient of a parameter that one rank unfroze,
    and a parameter that one rank froze would keep its value on this rank."""
    model = multilayer()
    bias = model[0].bias.requires_grad_(not thaws)
    optimizer = sgd(model)
    steps(model, optimizer, rank, range(used))
    before = [param.detach().clone() for param in model.parameters()]
    bias.requires_grad_(thaws == (rank == 1))
    with pytest.raises(hvd.HvdliteError, match=r"rank 1: .*0\.bias|rank 1: nothing") as e:
        steps(model, optimizer, rank, [2])
    assert e.value.kind == "mismatch" and "freeze the same parameters" in str(e.value).lower()
    assert all(map(torch.equal, before, model.parameters()))
    bias.requires_grad_(thaws)
    steps(model, optimizer, rank, [3, 4])
    assert same_everywhere(*model.parameters())


def test_sparse_gradients_after_a_rank_has_joined_are_an_error(rank, size, several):
    model = Tables(sparse=True)
    optimizer = hvd.DistributedOptimizer(torch.optim.SparseAdam(model.parameters(), 0.1))
    model(torch.tensor([0]), [0, 1, 2]).backward()
    optimizer.step()
    if rank:
        with pytest.raises(hvd.HvdliteError, match="With sparse_as_dense=True sparse"):
            optimizer.step()
    hvd.join()


@pytest.mark.parametrize("late", [False, True])
def test_a_model_that_ddp_also_averages_is_refused(late, groups, rank):
    """hvdlite and DDP would both write to the gradients, and weights would differ between ranks."""
    model = multilayer()
    wrap = torch.nn.parallel.DistributedDataParallel
    module = model if late else wrap(model)
    optimizer = sgd(model)
    module = wrap(model) if late else module
    loss_of(module, batch_of(rank, 0)).backward()
    with pytest.raises(ValueError, match=r"'0\.weight': a DistributedDataParallel reduces"):
        optimizer.step()


# ---- saved and loaded states that tests/contract/test_saved.py does not test ----


def momentum_of(model, **options):
    plain = torch.optim.SGD(model.parameters(), 0.1, 0.9)
    return hvd.DistributedOptimizer(plain, model.named_parameters(), **options)


def step(model, optimizer, rank, number) -> None:
    optimizer.zero_grad()
    loss_of(model, batch_of(rank, number)).backward()
    optimizer.step()


@pytest.mark.parametrize("op", [hvd.Average, hvd.Adasum])
@pytest.mark.parametrize("when", ["before", "after"])
def test_states_loaded_into_the_plain_optimizer_on_one_rank_are_an_error(op, when, rank, several):
    """The rank loads the states before or after it makes the DistributedOptimizer."""
    model = multilayer()
    trained = momentum_of(model, op=op)
    step(model, trained, rank, 0)
    plain, states = torch.optim.SGD(model.parameters(), 0.1, 0.9), trained.state_dict()
    if rank == 1 and when == "before":
        plain.load_state_dict(states)
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), op=op)
    if rank == 1 and when == "after":
        plain.load_state_dict(states)
    before = [param.detach().clone() for param in model.parameters()]
    with pytest.raises(hvd.HvdliteError, match="loaded before this step: .*rank 1: those with"):
        step(model, optimizer, rank, 1)
    assert all(map(torch.equal, before, model.parameters()))
    hvd.broadcast_optimizer_state(optimizer, root_rank=1)
    step(model, optimizer, rank, 2)
    assert same_everywhere(*model.parameters())


def test_each_rank_loads_its_own_states_of_adasum(rank):
    """With Adasum each rank steps with its own gradients, so momenta differ between ranks."""
    model = multilayer()
    optimizer = momentum_of(model, op=hvd.Adasum)
    step(model, optimizer, rank, 0)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    step(model, optimizer, rank, 1)
    assert same_everywhere(*model.parameters())


def test_states_of_sparse_parameters_loaded_on_one_rank_are_an_error(rank, several):
    """Dense gradients carry the digest of the states, but this model has no dense gradient."""
    table = torch.nn.Embedding(6, 3, sparse=True)
    hvd.broadcast_parameters(table.state_dict(), 0)
    plain = torch.optim.SparseAdam(table.parameters())
    optimizer = hvd.DistributedOptimizer(plain, table.named_parameters())

    def train() -> None:
        optimizer.zero_grad()
        table(torch.tensor([rank])).sum().backward()
        optimizer.step()

    train()
    states = copy.deepcopy(optimizer.state_dict())
    train()
    if rank == 1:
        optimizer.load_state_dict(states)
    with pytest.raises(hvd.HvdliteError, match="loaded before this step: .*rank 1: those with"):
        train()
    hvd.broadcast_optimizer_state(optimizer, root_rank=1)
    train()
    assert same_everywhere(*table.parameters())


def test_equal_states_loaded_on_every_rank_are_accepted(rank, size):
    """Ranks also load states between backward and step, when some gradients have been sent."""
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


@pytest.mark.parametrize("op", [hvd.Sum, hvd.Average])
def test_reading_param_groups_between_passes_averages_only_once(op, rank, size):
    """A progress bar, for example, reads the rate between passes; only one reading may average."""
    model, expected = multilayer(), multilayer()
    optimizer = momentum_of(model, backward_passes_per_step=2, op=op)
    plain = torch.optim.SGD(expected.parameters(), 0.1, 0.9)
    for number in range(3):
        optimizer.zero_grad()
        plain.zero_grad()
        if number == 1:  # drop the gradients of a pass
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


def adasum():
    model = multilayer()
    optimizer = sgd(model, op=hvd.Adasum)
    return lambda: (loss_of(model, batch_of(0, 0)).backward(), optimizer.step())


def guard():
    return hvd.Guard(multilayer().named_parameters()).step


def sync_batch_norm():
    layer = hvd.SyncBatchNorm(3)
    return lambda: layer(torch.arange(12.0).reshape(4, 3))


@pytest.mark.parametrize("make", [adasum, guard, sync_batch_norm])
def test_an_extra_torch_optimizer_or_guard_on_one_rank_is_an_error(make, rank, several):
    """Without the error, ranks would wait for tensors that other ranks never submit."""
    if rank == 1:
        make()
    with pytest.raises(
        hvd.HvdliteError, match="ranks disagree on its number: rank 0: .*on all"
    ) as e:
        make()()
    assert e.value.kind == "mismatch"
    if rank != 1:
        make()
    make()()
