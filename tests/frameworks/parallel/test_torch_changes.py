"""Scripts that add, remove or unfreeze parameters: on all ranks, or on only one rank."""

import pytest
import torch
from torch_tensors import same_everywhere

import hvdlite.torch as hvd

KINDS = pytest.mark.parametrize("kind", ["dense", "sparse", "frozen", "unreached"])
WHEN = pytest.mark.parametrize("late", [False, True], ids=["before backward", "after backward"])


class Model:
    """Tables whose rows are added up, and an optimizer that has the first two tables."""

    def __init__(self, kind: str, rank: int) -> None:
        self.tables = [torch.nn.Embedding(2, 3, sparse=kind == "sparse") for _ in range(3)]
        self.weights = [table.weight for table in self.tables]
        for weight in self.weights:
            torch.nn.init.ones_(weight)
        self.used = 1 if kind == "unreached" else 2
        if kind == "frozen":
            for weight in self.weights[:2]:
                weight.requires_grad_(False)
        self.plain = torch.optim.SGD([{"params": [each]} for each in self.weights[:2]], 1.0)
        self.optimizer = hvd.DistributedOptimizer(self.plain, op=hvd.Sum)
        self.rows = torch.tensor([0, 1]) if rank else torch.tensor([1])

    def step(self, between=lambda: None, used=None) -> None:
        for weight in self.weights:
            weight.grad = None
        tables = self.tables[: used or self.used]
        loss = sum(table(self.rows).sum() for table in (*tables, self.tables[2]))
        loss.backward()
        between()
        self.optimizer.step()

    def add(self) -> None:
        self.optimizer.add_param_group({"params": [self.weights[2]]})

    def append(self) -> None:
        self.plain.param_groups[0]["params"].append(self.weights[2])

    def remove(self) -> None:
        del self.plain.param_groups[0]


@KINDS
@WHEN
@pytest.mark.parametrize("change", [Model.add, Model.append, Model.remove])
@pytest.mark.parametrize("used", [0, 2])
def test_a_change_of_parameters_on_only_one_rank_is_an_error_on_all_ranks(
    used, change, late, kind, rank, several
):
    """Without the error, the ranks would wait for the gradient of a parameter that one rank added,
    and a parameter that one rank removed would keep its value on that rank."""
    model = Model(kind, rank)
    for _ in range(used):
        model.step()
    mine = (lambda: change(model)) if rank == 1 else lambda: None
    text = r"optimizer\d+.*rank.* 1.*: .*noname"
    with pytest.raises(hvd.HvdliteError, match=text) as caught:
        if late:
            model.step(mine)
        else:
            mine()
        for _ in range(2):  # a rank without the change may raise the error one step later
            model.step()
    assert caught.value.kind == "mismatch" and "on every rank" in str(caught.value)
    if rank != 1:
        change(model)
    hvd.broadcast_parameters({f"{i}": each for i, each in enumerate(model.weights)}, 0)
    for _ in range(2):
        model.step()
    assert same_everywhere(*model.weights)


@KINDS
@WHEN
@pytest.mark.parametrize("change", [Model.add, Model.append, Model.remove])
def test_training_is_right_after_equal_changes_of_parameters(change, late, kind, rank, size):
    model = Model(kind, rank)
    model.step()
    before = [weight.detach().clone() for weight in model.weights]
    model.step((lambda: change(model)) if late else change(model) or (lambda: None))
    model.step()
    # all ranks but rank 0 use row 0, and all ranks use row 1, so these are the sums of gradients
    step = torch.tensor([[size - 1.0], [size]]).expand(2, 3)
    trained = [kind != "frozen" and change != Model.remove, kind in ("dense", "sparse")]
    for old, new, steps in zip(before, model.weights, (*trained, change != Model.remove)):
        assert torch.equal(old - new, 2 * steps * step)


@pytest.mark.parametrize("used", [0, 2])
def test_another_number_of_passes_on_one_rank_is_an_error_on_all_ranks(used, rank, several):
    model = Model("dense", rank)
    for _ in range(used):
        model.step()
    model.optimizer.set_backward_passes_per_step(1 + (rank == 1))
    with pytest.raises(hvd.HvdliteError, match=r"rank.* 1.*: backward_passes_per_step 2"):
        model.step()
    model.optimizer.set_backward_passes_per_step(1)
    model.step()
    assert same_everywhere(*model.weights)


def test_a_parameter_added_after_synchronize_is_an_error(rank):
    """Otherwise step() would use this rank's own gradient, and the weights would differ."""
    model = Model("dense", rank)
    model.step()
    add = model.optimizer.synchronize, model.add
    late = pytest.raises(RuntimeError, match="'noname.2.0' was added or unfrozen between sync")
    with late, model.optimizer.skip_synchronize():
        model.step(lambda: [each() for each in add])


def test_unused_embedding_tables_are_trained_after_a_group_was_added(rank, size):
    model = Model("unreached", rank)
    model.step()
    model.add()
    model.step(used=2 if rank == size - 1 else 1)
    model.step(used=2)
    assert same_everywhere(*model.weights) and (model.weights[1][1] < 1).all()


@pytest.mark.parametrize("frozen", [False, True])
def test_ranks_send_no_request_for_frozen_parameters(frozen, rank, several):
    model = Model("dense", rank)
    if frozen:
        model.weights[2].requires_grad_(False)
        model.add()
    counts = []
    for _ in range(4):
        before = hvd.stats()["tensors"]
        model.step()
        counts.append(hvd.stats()["tensors"] - before)
    assert counts[-1] == 1


def _zero_and_skip_the_step(model: Model) -> None:
    """Skip the step after backward, as GradScaler does after an overflow."""
    model.optimizer.synchronize()
    model.optimizer.zero_grad()
    model.optimizer.step = lambda: vars(model.optimizer).pop("step")


DROPS = pytest.mark.parametrize(
    "drop",
    [
        lambda model: model.optimizer.zero_grad(),
        lambda model: model.optimizer.zero_grad(set_to_none=False),
        lambda model: model.optimizer.synchronize() or model.tables[0].zero_grad(),
        _zero_and_skip_the_step,
    ],
    ids=["zero_grad", "to zero", "model", "skipped step"],
)


@DROPS
@pytest.mark.filterwarnings("ignore:optimizer.step. called without")
@pytest.mark.parametrize("kind", ["dense", "unreached"])
@pytest.mark.parametrize("used", [0, 2])
def test_dropping_averaged_gradients_on_only_one_rank_is_an_error(used, kind, drop, rank, several):
    """Without the error, the weights of the ranks would differ."""
    model = Model(kind, rank)
    for _ in range(used):
        model.step()
    model.step((lambda: drop(model)) if rank == 1 else lambda: None)
    with pytest.raises(hvd.HvdliteError, match=r"rank.* 1.*: averages of the last step dropped"):
        model.step()
    hvd.broadcast_parameters({f"{i}": each for i, each in enumerate(model.weights)}, 0)
    model.step()
    assert same_everywhere(*model.weights)


@DROPS
@pytest.mark.filterwarnings("ignore:optimizer.step. called without")
@pytest.mark.parametrize("kind", ["dense", "unreached"])
def test_dropping_averaged_gradients_on_all_ranks_is_not_an_error(kind, drop, rank, size):
    model = Model(kind, rank)
    for _ in range(2):
        model.step(lambda: drop(model))
    before = model.weights[0].detach().clone()
    model.step()
    assert torch.equal(before - model.weights[0], torch.tensor([[size - 1.0], [size]]).expand(2, 3))
