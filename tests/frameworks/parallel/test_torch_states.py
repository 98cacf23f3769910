"""Broadcasts of weights and states; SyncBatchNorm; the communication hook for PyTorch's DDP."""

import types

import pytest
import torch
from numbers_of_ranks import check_far_from_zero
from torch_tensors import batch_of, difference, loss_of, multilayer, same_everywhere, train

import hvdlite.torch as hvd
from hvdlite.core import names


def test_broadcast_parameters_takes_parameters_in_each_form(rank, size):
    kinds = (
        lambda model: model.state_dict(),
        lambda model: model.named_parameters(),
        lambda model: list(model.parameters()),
    )
    for root in range(size):
        for params_of in kinds:
            model = multilayer(10 + rank)
            hvd.broadcast_parameters(params_of(model), root_rank=root)
            assert difference(model, multilayer(10 + root)) == 0


def test_broadcast_parameters_also_broadcasts_buffers(rank):
    layer = torch.nn.BatchNorm1d(3)
    layer(torch.randn(5, 3) + rank)
    hvd.broadcast_parameters(layer.state_dict(), root_rank=0)
    assert same_everywhere(*layer.state_dict().values())


def test_the_error_about_different_models_names_the_parameter(rank, several):
    model = torch.nn.Linear(3, 4 + (rank == 0))
    with pytest.raises(hvd.HvdliteError, match=r"weight.*\(5, 3\).*weight.*\(4, 3\)"):
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)


@pytest.mark.parametrize("wrap", [lambda plain: plain, hvd.DistributedOptimizer])
@pytest.mark.parametrize("kind", ["SGD", "Adam", "LBFGS"])
def test_broadcast_optimizer_state_gives_all_ranks_the_state_of_the_root(kind, wrap, rank, several):
    """Only the root has trained, so only the root has a state."""
    model = multilayer()
    options = {"SGD": {"momentum": 0.9}, "Adam": {"betas": (0.8, 0.9)}, "LBFGS": {"max_iter": 2}}
    plain = getattr(torch.optim, kind)(model.parameters(), lr=0.1 + rank, **options[kind])
    if rank == 0:
        batch = batch_of(0, 0)

        def closure():
            plain.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            return loss.detach()

        plain.step(closure)
    optimizer = wrap(plain)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    group = optimizer.state_dict()["param_groups"][0]
    assert group["lr"] == 0.1
    assert type(group.get("betas", ())) is tuple
    states = list(optimizer.state_dict()["state"].values())
    assert states
    for state in states:
        assert same_everywhere(*(value for value in state.values() if torch.is_tensor(value)))


@pytest.mark.parametrize("wrap", [lambda plain: plain, hvd.DistributedOptimizer])
@pytest.mark.parametrize("kind", ["SGD", "SparseAdam", "LBFGS"])
def test_after_broadcast_optimizer_state_every_parameter_has_a_gradient(kind, wrap, rank):
    """Scripts for Horovod read these gradients.

    Exception: a frozen parameter gets none. A gradient that exists already keeps its value.
    """
    table, frozen = torch.nn.Embedding(4, 3, sparse=kind == "SparseAdam"), multilayer()[0].weight
    given, frozen.requires_grad = torch.nn.Parameter(torch.ones(2)), False
    given.grad = torch.ones(2).to_sparse() if kind == "SparseAdam" else torch.ones(2)
    params = [table.weight, given, frozen]
    optimizer = wrap(getattr(torch.optim, kind)(params, lr=0.5))
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert table.weight.grad.to_dense().tolist() == torch.zeros(4, 3).tolist()
    assert given.grad.to_dense().tolist() == [1, 1] and frozen.grad is None
    if kind != "LBFGS":  # LBFGS's step needs a closure
        before = table.weight.detach().clone()
        table(torch.tensor([1])).sum().backward()
        optimizer.step()
        moved = (table.weight - before).detach().abs().sum(1)
        assert moved[1] > 0 and moved[[0, 2, 3]].max() == 0


def test_a_distributed_optimizer_shares_the_attributes_of_the_given_optimizer(rank):
    model = multilayer()
    plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
    assert isinstance(optimizer, torch.optim.SGD)
    assert isinstance(optimizer, hvd.DistributedOptimizer)
    train(model, optimizer, [batch_of(rank, 0)])
    saved = optimizer.state_dict()
    fresh = torch.optim.SGD(multilayer().parameters(), lr=9.0, momentum=0.9)
    fresh.load_state_dict(saved)
    assert fresh.param_groups[0]["lr"] == 0.1
    optimizer.load_state_dict(saved)
    train(model, optimizer, [batch_of(rank, 1)])
    assert same_everywhere(*model.parameters())


def sgd_of(model):
    return torch.optim.SGD(model.parameters(), 0.1)


@pytest.mark.parametrize(
    "arguments, text",
    [
        ({"named_parameters": [("a", torch.zeros(1))]}, "lacks 4 parameters"),
        ({"named_parameters": ["a"]}, "expected pairs"),
        ({"groups": [[1]]}, "lists of parameters"),
        ({"op": hvd.Max}, "expected hvdlite.Average"),
        ({"optimizer": multilayer}, "got Sequential"),
        (
            {"optimizer": lambda: hvd.DistributedOptimizer(sgd_of(multilayer()))},
            "distributed already",
        ),
        (
            {"optimizer": lambda: sgd_of(torch.nn.Linear(2, 2, device="meta"))},
            "does not take tensors on this device",
        ),
    ],
)
def test_the_torch_distributed_optimizer_refuses_wrong_arguments(arguments, text):
    make, arguments = arguments.get("optimizer"), {**arguments}
    arguments["optimizer"] = make() if make else sgd_of(multilayer())
    with pytest.raises(ValueError, match=text):
        hvd.DistributedOptimizer(**arguments)


def test_sync_batch_norm_equals_batch_norm_on_the_joined_batch(rank, size, report_parity):
    """Ranks have batches of different sizes."""

    def net(layer):
        torch.manual_seed(3)
        return torch.nn.Sequential(torch.nn.Conv2d(2, 5, 3), layer, torch.nn.ReLU())

    model, alone = net(hvd.SyncBatchNorm(5)), net(torch.nn.BatchNorm2d(5))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), op=hvd.Sum)
    other = torch.optim.SGD(alone.parameters(), 0.1)

    def batch(r, step):
        return batch_of(r, step, (r + 2, 2, 6, 6))

    for step in range(4):
        for opt, module, x in (
            (optimizer, model, batch(rank, step)),
            (other, alone, torch.cat([batch(r, step) for r in range(size)])),
        ):
            opt.zero_grad()
            (module(x).square().sum() / 1000).backward()
            opt.step()
    report_parity("PyTorch, SyncBatchNorm", difference(model, alone), 2e-5)
    for name, buffer in alone[1].named_buffers():
        assert torch.allclose(dict(model[1].named_buffers())[name], buffer, atol=1e-5)
    assert same_everywhere(*model.parameters(), *model.buffers())
    model.eval()
    alone.eval()
    x = batch_of(7, 7, (3, 2, 6, 6))
    assert torch.allclose(model(x), alone(x), atol=1e-4)


def test_sync_batch_norm_has_gradients_of_gradients(rank, size):
    """A penalty on gradients (WGAN-GP) needs gradients of gradients."""

    def second(layer, x):
        x.requires_grad_()
        (first,) = torch.autograd.grad(layer(x).pow(3).sum(), x, create_graph=True)
        first.square().sum().backward()
        return x.grad

    own = second(hvd.SyncBatchNorm(3).double(), batch_of(rank, 0, (4, 3)).double())
    joined = torch.cat([batch_of(r, 0, (4, 3)) for r in range(size)]).double()
    expected = second(torch.nn.BatchNorm1d(3).double(), joined)
    assert torch.allclose(own, expected[4 * rank : 4 * rank + 4])


def test_sync_batch_norm_numbers_its_calls_from_0_in_a_new_job(rank, size):
    layer = hvd.SyncBatchNorm(3)
    # one call fails on rank 0 only, so rank 0 has counted another number of calls
    if rank == 0 and size > 1:
        with pytest.raises(ValueError, match="dtype"):
            layer(torch.ones(4, 3, dtype=torch.complex64))
    names._counts.begin_job()
    out = layer(torch.full((4, 3), float(rank)))
    assert torch.allclose(sum(hvd.allgather_object(out.detach())), torch.zeros(4, 3), atol=1e-4)


def test_sync_batch_norm_is_accurate_far_from_zero():
    def normalize(*arrays):
        x, dy = (torch.tensor(array.transpose(0, 3, 1, 2)) for array in arrays)
        x.requires_grad_()
        y = hvd.SyncBatchNorm(3)(x)
        y.backward(dy)
        return [t.detach().numpy().transpose(0, 2, 3, 1) for t in (y, x.grad)]

    check_far_from_zero(normalize)


def test_sync_batch_norm_of_one_value_per_channel_is_refused(rank, size):
    """PyTorch refuses such a batch, too, because the variance is 0."""
    layer = hvd.SyncBatchNorm(3)
    if size > 1:
        assert torch.isfinite(layer(torch.full((1, 3), float(rank)))).all()  # one row per rank
    with pytest.raises(ValueError, match="(?i)expected more than 1 value per channel"):
        layer(torch.ones(int(rank == 0), 3))
    assert torch.isfinite(layer.running_var).all()


def test_a_failed_bucket_of_ddp_leaves_no_future_waiting(rank, size, several):
    state = hvd.AllreduceState()
    buckets = [torch.ones(3 + (rank == 0)), torch.full((2,), rank + 1.0), torch.ones(1)]

    def start(i):
        methods = {"index": lambda: i, "buffer": lambda: buckets[i], "is_last": lambda: i == 2}
        return hvd.allreduce_hook(state, types.SimpleNamespace(**methods))

    failed, sound = start(0), start(1)
    with pytest.raises(hvd.HvdliteError, match="ranks disagree on the shape"):
        start(2)
    with pytest.raises(hvd.HvdliteError, match="ranks disagree on the shape"):
        failed.wait()
    assert (sound.wait() == (size + 1) / 2).all()


def test_a_guard_checks_sparse_gradients(rank):
    table = torch.nn.Embedding(10, 2, sparse=True)
    hvd.broadcast_parameters(table.state_dict(), root_rank=0)
    (table(torch.tensor([1, 7])) * (float("nan") if rank == 0 else 1)).sum().backward()
    with pytest.raises(hvd.HvdliteError, match="of parameter 'weight' has NaN"):
        hvd.Guard(table.named_parameters(), every=1).step()
