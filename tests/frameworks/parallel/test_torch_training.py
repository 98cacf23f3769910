"""PyTorch: ranks train to the weights of one process that trains on the batches of all ranks."""

import copy
import gc
import pickle
import warnings
import weakref
from contextlib import nullcontext

import pytest
import torch
from torch_tensors import (
    batch_of,
    convolutional,
    difference,
    joined_batch,
    loss_of,
    multilayer,
    same_everywhere,
    train,
)
from traces import counted

import hvdlite.torch as hvd
from hvdlite.torch import exchange, tensors

STEPS = 6
IMAGES = (4, 3, 8, 8)


def distributed(model, optimizer=None, **options):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return hvd.DistributedOptimizer(optimizer, model.named_parameters(), **options)


def own_batches(rank, shape=(4, 6)) -> list:
    return [batch_of(rank, step, shape) for step in range(STEPS)]


def joined_batches(shape=(4, 6)) -> list:
    return [joined_batch(step, shape) for step in range(STEPS)]


def test_gradients_in_channels_last_layout_are_averaged(rank, report_parity):
    model, alone = convolutional(), convolutional()
    train(model, distributed(model), own_batches(rank, IMAGES))
    train(alone, torch.optim.SGD(alone.parameters(), 0.1, 0.9), joined_batches(IMAGES))
    report_parity("PyTorch, convolution", difference(model, alone), 5e-6)
    assert model[0].weight.grad.is_contiguous(memory_format=torch.channels_last)
    assert same_everywhere(*model.parameters())


@pytest.mark.parametrize(
    "compression",
    [hvd.Compression.none, hvd.Compression.fp16, hvd.Compression.one_bit()],
    ids=["plain", "fp16", "one_bit"],
)
def test_gradients_on_a_gpu_pass_through_the_host(compression, rank, monkeypatch):
    """hvdlite treats CPU tensors like GPU tensors here; only copies to a GPU are missing."""
    passed = []

    def trained():
        model = multilayer()
        train(model, distributed(model, compression=compression), own_batches(rank))
        return model

    direct = trained()
    for module in (tensors, exchange):
        monkeypatch.setattr(module, "is_staged", lambda tensor: passed.append(tensor) or True)
    assert difference(trained(), direct) == 0
    assert passed


def test_training_in_bfloat16_is_close_to_one_process(rank, report_parity):
    model, alone = multilayer(dtype=torch.bfloat16), multilayer(dtype=torch.bfloat16)
    batches = [batch.bfloat16() for batch in own_batches(rank)]
    train(model, distributed(model), batches)
    joined = [batch.bfloat16() for batch in joined_batches()]
    train(alone, torch.optim.SGD(alone.parameters(), 0.1, 0.9), joined)
    report_parity("PyTorch, bfloat16", difference(model, alone), 0.02)
    assert model[0].weight.grad.dtype is torch.bfloat16
    assert same_everywhere(*model.parameters())


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_are_in_memory_that_the_ranks_share(set_to_none, rank, several):
    model = multilayer()
    optimizer = distributed(model)
    for batch in own_batches(rank):
        optimizer.zero_grad(set_to_none=set_to_none)
        loss_of(model, batch).backward()
        optimizer.step()
    shared = []
    with open("/proc/self/maps") as maps:
        for line in maps:
            place, rights, *_ = line.split()
            if rights.endswith("s"):
                shared.append([int(end, 16) for end in place.split("-")])
    for param in model.parameters():
        at = param.grad.data_ptr()
        assert any(start <= at < end for start, end in shared)


def test_gradients_are_averaged_after_a_script_has_replaced_their_memory(rank, report_parity):
    model, alone = multilayer(), multilayer()
    optimizer = distributed(model)
    for batch in own_batches(rank):
        train(model, optimizer, [batch])
        model.double().float()  # as scripts do to save the model in another dtype
        for param in model.parameters():
            param.grad.data = param.grad.data.clone()
    train(alone, torch.optim.SGD(alone.parameters(), 0.1, 0.9), joined_batches())
    report_parity("PyTorch, replaced memory", difference(model, alone), 5e-6)
    assert same_everywhere(*model.parameters())


def test_after_a_skipped_step_a_rank_without_a_batch_contributes_zeros(rank):
    model = multilayer()
    optimizer = distributed(model)
    train(model, optimizer, [batch_of(rank, 0)])
    loss_of(model, batch_of(rank, 1)).backward()
    assert optimizer.param_groups  # GradScaler also reads them and may then skip the step
    optimizer.zero_grad()
    if rank == 0:
        loss_of(model, batch_of(rank, 2)).backward()
    optimizer.step()
    assert same_everywhere(*model.parameters())


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copying_a_distributed_torch_optimizer_is_refused(copied):
    with pytest.raises(TypeError, match="can't be copied or pickled: copy its state_dict()"):
        copied(distributed(multilayer()))


@pytest.mark.parametrize("skip", [True, False])
def test_step_after_synchronize_warns_unless_it_is_skipped(skip, rank):
    model = multilayer()
    optimizer = distributed(model)
    for step in range(2):
        loss_of(model, batch_of(rank, step)).backward()
        optimizer.synchronize()
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            with optimizer.skip_synchronize() if skip else nullcontext():
                optimizer.step()
        texts = [str(each.message) for each in given]
        assert len(texts) == (0 if skip else 1)
        assert all("without optimizer.skip_synchronize()" in text for text in texts)
    loss_of(model, batch_of(rank, 2)).backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()  # synchronize() has not been called since the last step


def test_parameters_have_distinct_names_that_are_equal_on_all_ranks():
    model = multilayer()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([{"params": [param]} for param in model.parameters()], 0.1)
    )
    optimizer.add_param_group({"params": torch.nn.Linear(2, 2).parameters()})
    names = [optimizer._parameter_names[p] for g in optimizer.param_groups for p in g["params"]]
    assert len(names) == len(set(names)) == len(list(model.parameters())) + 2
    assert all(theirs == names for theirs in hvd.allgather_object(names))


@pytest.mark.parametrize("op", [hvd.Average, hvd.Adasum])
def test_an_optimizer_has_horovods_attributes(op):
    optimizer = distributed(multilayer(), backward_passes_per_step=2, op=op)
    assert (optimizer.op, optimizer.backward_passes_per_step) == (op, 2)
    assert (optimizer.gradient_predivide_factor, optimizer.sparse_as_dense) == (1.0, False)
    assert optimizer.process_set is hvd.global_process_set
    optimizer.set_backward_passes_per_step(3)
    assert optimizer.backward_passes_per_step == 3


@pytest.mark.parametrize("before", [True, False])
def test_schedulers_made_before_or_after_the_optimizer_work(before, rank, report_parity):
    def run(model, wrap, batches):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        if before:
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        optimizer = wrap(optimizer)
        if not before:
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        for batch in batches:
            train(model, optimizer, [batch])
            scheduler.step()
        used.append(weakref.ref(optimizer))
        return optimizer.param_groups[0]["lr"]

    model, alone = multilayer(), multilayer()
    used = []
    expected = run(alone, lambda plain: plain, joined_batches())
    gc.disable()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(model, hvd.DistributedOptimizer, own_batches(rank)) == expected
    gc.enable()
    assert used[-1]() is None  # freed without gc, so there is no cycle of references
    report_parity("PyTorch, scheduler", difference(model, alone), 5e-6)


@pytest.mark.parametrize("as_number", [False, True])
def test_gradients_are_averaged_after_each_call_of_the_closure(as_number, rank, report_parity):
    def run(model, optimizer, batch):
        def closure():
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            return loss.item() if as_number else loss

        losses = [optimizer.step(closure) for _ in range(2)]
        return [float(torch.as_tensor(loss).detach()) for loss in losses]

    def lbfgs(net):
        return torch.optim.LBFGS(
            net.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe"
        )

    model, alone = multilayer(), multilayer()
    losses = run(model, hvd.DistributedOptimizer(lbfgs(model)), batch_of(rank, 0))
    assert losses == pytest.approx(run(alone, lbfgs(alone), joined_batch(0)), rel=1e-3)
    report_parity("PyTorch, LBFGS", difference(model, alone), 1e-3)
    assert same_everywhere(*model.parameters())


def test_a_step_in_torch_compile_trains_as_one_process_trains(rank, report_parity):
    model, alone = multilayer(), multilayer()
    optimizer = distributed(model)

    @torch.compile(backend="aot_eager")
    def step(batch):
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        return hvd.allreduce(loss.detach() * 2, name="loss")

    losses = [step(batch) for batch in own_batches(rank)]
    train(alone, torch.optim.SGD(alone.parameters(), 0.1, 0.9), joined_batches())
    report_parity("PyTorch, compiled step", difference(model, alone), 5e-6)
    assert same_everywhere(*losses)


def test_adasum_combines_the_changes_of_each_ranks_step(rank, size):
    model = multilayer()
    before = [param.detach().clone() for param in model.parameters()]
    own = copy.deepcopy(model)
    train(own, torch.optim.SGD(own.parameters(), 0.1, 0.9), [batch_of(rank, 0)])
    deltas = [new.detach() - old for new, old in zip(own.parameters(), before)]
    expected = hvd.grouped_allreduce(deltas, op=hvd.Adasum)
    train(model, distributed(model, op=hvd.Adasum), [batch_of(rank, 0)])
    for param, old, delta in zip(model.parameters(), before, expected):
        assert torch.allclose(param, old + delta, atol=1e-7)
    assert same_everywhere(*model.parameters())


def test_a_parameter_unfrozen_later_is_averaged_only_once(rank, size):
    trained, frozen = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    frozen.requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([trained, frozen], 0.1), op=hvd.Sum)
    for step in range(4):
        frozen.requires_grad_(step > 1)  # at step 2 backward already sends gradients of `trained`
        optimizer.zero_grad()
        ((trained + frozen) * (rank + 1)).sum().backward()
        optimizer.step()
        sums = [param.grad for param in (trained, frozen) if param.requires_grad]
        assert [each.tolist() for each in sums] == [[size * (size + 1) / 2] * 3] * len(sums)


def test_the_monitor_counts_the_steps_of_torch(rank):
    model = multilayer()
    optimizer, batches = distributed(model), [batch_of(rank, 0)]
    assert 90 < counted(lambda: train(model, optimizer, batches), 120) <= 121


def test_adasum_combines_parameters_that_were_added_later(rank):
    first, later = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([first], 0.1), op=hvd.Adasum)
    optimizer.add_param_group({"params": [later]})
    ((first + later) * (rank + 1)).sum().backward()
    optimizer.step()
    assert torch.equal(first, later)
    assert same_everywhere(later)
