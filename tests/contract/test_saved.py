"""Saved and loaded optimizer states: on only one rank, with compression, between passes."""

import warnings

import numpy as np
import pytest
from numbers_of_ranks import same_everywhere
from one_process import batch_of, start_weights
from test_trainers import trainers_that

import hvdlite as hvd

saving = trainers_that(lambda kind: kind.saves)
loading = trainers_that(lambda kind: kind.saves or kind.loads)


def made(kind, codec=None, **options):
    if codec:
        if "compression" not in kind.takes or codec not in kind.codecs:
            pytest.skip("the trainer takes no such codec")
        options["compression"] = kind.compression(codec)
    return kind(start_weights(), **options)


def train(trainer, steps) -> list:
    for step in steps:
        trainer.train(batch_of(hvd.rank(), step))
    return trainer.weights()


@loading
@pytest.mark.parametrize("codec", [None, "1bit"])
@pytest.mark.parametrize("steps", [0, 3], ids=["before the first step", "later"])
def test_the_next_step_fails_if_only_one_rank_has_loaded_states(kind, codec, steps, rank, several):
    """Without the error, this rank's weights would differ from the weights of other ranks."""
    trainer, trained = made(kind, codec), made(kind, codec)
    train(trained, range(2))
    before, states = train(trainer, range(steps)), trained.saved()
    if rank == 1:
        trainer.load(states)
    with pytest.raises(kind.errors, match="loaded before.*rank 1: those w"):
        train(trainer, [3])
    kind.end_all()
    if kind.waits:  # otherwise (MXNet) the error comes later, when the gradient is applied
        assert all(map(np.array_equal, before, trainer.weights()))
        trainer.follow(1)
        assert all(map(same_everywhere, train(trainer, range(4, 6))))


@loading
def test_training_goes_on_if_every_rank_has_loaded_or_received_the_states(kind, rank, several):
    trainer = made(kind)
    for root in (None, 1):
        train(trainer, range(2))
        states = trainer.saved()
        if root in (None, rank):
            trainer.load(states)
        if root is not None:
            trainer.follow(root)
    assert all(map(same_everywhere, train(trainer, range(3))))


@saving
@pytest.mark.parametrize("late", [False, True], ids=["", "with a parameter that comes late"])
@pytest.mark.parametrize("codec", ["1bit", "2bit", "topk"])
def test_saved_states_include_the_residuals_of_compression(kind, codec, late):
    """A resumed run equals the uninterrupted one, even if a new parameter changes the buckets."""
    trainer = made(kind, codec)
    if late and not hasattr(trainer, "add_parameter"):
        pytest.skip("the trainer takes no new parameters")
    weights = train(trainer, range(3))
    resumed = kind(weights, compression=kind.compression(codec))
    resumed.load(trainer.saved())
    if late:
        resumed.add_parameter()
    assert all(map(np.array_equal, train(trainer, range(3, 6)), train(resumed, range(3, 6))))


@saving
def test_a_rank_does_not_load_the_residuals_of_another_rank(kind, rank, several):
    trainer = made(kind, "1bit")
    train(trainer, range(1))
    states = hvd.broadcast_object(trainer.saved(), 0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.load(states)
    texts = [str(each.message) for each in caught]
    assert any("save the optimizer's states on every rank" in t for t in texts) == (rank != 0)


@saving
@pytest.mark.parametrize("late", [None, 1], ids=["", "of an older commit"])
def test_an_elastic_commit_keeps_the_residuals_of_each_rank(kind, late, rank, several):
    """A rank that has an older commit than others warns that it has lost its residuals."""
    trainer = made(kind, "1bit")
    train(trainer, range(1))
    early = trainer.saved()
    weights, state = train(trainer, range(1, 3)), trainer.committed()
    state.save()
    resumed = kind(weights, compression=kind.compression("1bit"))
    resumed.load(trainer.saved())
    trainer.load(early)
    state = trainer.committed() if rank == late else state
    state.restore()
    state.on_reset()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        state.sync()
    lost = ["has a newer commit" in str(each.message) for each in caught]
    assert sum(lost) == (rank == late)
    expected, went_on = train(resumed, range(3, 6)), train(trainer, range(3, 6))
    assert all(map(same_everywhere, went_on))
    assert all(map(np.array_equal, expected, went_on)) == (late is None)


@saving
def test_saving_between_the_passes_of_a_step_is_refused(kind, rank):
    """States do not contain the gradients of the passes so far, so these would be lost."""
    trainer = made(kind, backward_passes_per_step=2)
    trainer.begin(batch_of(rank, 0))
    with pytest.raises(
        RuntimeError, match="some of this step's 2 backward passes.*save after the step"
    ):
        trainer.saved()
    trainer.train(batch_of(rank, 1))
    assert trainer.saved()
