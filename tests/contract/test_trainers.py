"""With every trainer, ranks train the weights that one process trains on the joined batches."""

import os
import re

import numpy as np
import pytest
from numbers_of_ranks import same_everywhere
from one_process import OneProcess, batch_of, start_weights
from trainers import Halved, wanted_trainers

import hvdlite as hvd


def trainers_that(suit):
    """Return a parametrization of a test with each trainer for which suit(trainer) is true."""
    kinds = [kind for kind in wanted_trainers() if suit(kind)]
    return pytest.mark.parametrize("kind", kinds, ids=lambda kind: kind.__name__)


every_trainer = trainers_that(lambda kind: True)
TOLERANCE = 2e-5


def largest_difference(trainer, expected) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(trainer.weights(), expected.weights))


def check(trainer, expected, tolerance: float = TOLERANCE) -> None:
    assert largest_difference(trainer, expected) <= tolerance
    assert all(map(same_everywhere, trainer.weights()))


def joined(step: int, rows: int, ranks) -> list:
    return [batch_of(r, step, rows) for r in ranks]


def train(trainer, expected, steps=range(3), ranks=None, factor=1.0, rows=(4,)) -> None:
    """Train both: the trainer with this rank's batches, ``expected`` with the batches of all
    ranks."""
    ranks = range(hvd.size()) if ranks is None else ranks
    for step in steps:
        count = rows[step % len(rows)]
        trainer.train(batch_of(hvd.rank(), step, count))
        expected.train(joined(step, count, ranks), factor=factor)


HOW = [
    {},
    {"op": hvd.Sum},
    *(
        {"num_groups": groups, "gradient_predivide_factor": factor}
        for groups, factor in ((1, 0.5), (2, 4.0), (100, 1024.0))
    ),
    {"groups": [[3, 0], [1]]},
]


@every_trainer
@pytest.mark.parametrize("how", HOW, ids=str)
def test_training_equals_one_process_on_the_joined_batch(kind, how, size, report_parity):
    if not {*how} <= {*kind.takes}:
        pytest.skip("the trainer takes no such option")
    if kind.graphs and how.get("num_groups", 2) != 2:
        pytest.skip("other trainers test 1 and 100 groups")
    trainer, expected = kind(start_weights(), **how), OneProcess(start_weights())
    train(trainer, expected, factor=size if "op" in how else 1, rows=(4,) if how else kind.rows)
    check(trainer, expected)
    report_parity(kind.__name__, largest_difference(trainer, expected), TOLERANCE)


@trainers_that(lambda kind: "gradient_predivide_factor" in kind.takes)
def test_a_predivide_factor_is_refused_if_op_is_not_average(kind, rank):
    """test_wrong_arguments.py tests the other arguments that trainers refuse."""
    with pytest.raises(ValueError, match="expected 1, because op is not"):
        trainer = kind(start_weights(), gradient_predivide_factor=2.0, op=hvd.Sum)
        trainer.train(batch_of(rank, 0))


@trainers_that(lambda kind: "backward_passes_per_step" in kind.takes)
@pytest.mark.parametrize("passes", [2, 3])
def test_training_with_several_passes_per_step_equals_one_process(kind, passes, rank, size):
    trainer = kind(start_weights(), backward_passes_per_step=passes)
    expected = OneProcess(start_weights())
    for step in range(3):
        numbers = [10 * step + i for i in range(passes)]
        trainer.train(*(batch_of(rank, i) for i in numbers))
        batches = [batch for i in numbers for batch in joined(i, 4, range(size))]
        expected.train(batches, factor=passes if kind.sums_passes else 1)
    check(trainer, expected)


@every_trainer
@pytest.mark.parametrize("codec", ["own", "fp16", "bf16", "2bit", "1bit", "topk"])
def test_compressed_training_is_close_to_one_process(kind, codec, size):
    """test_codec.py tests the exact results of each lossy codec."""
    if "compression" not in kind.takes or codec not in kind.codecs:
        pytest.skip("the trainer takes no such codec")
    Halved.shapes.clear()
    trainer, expected = (
        kind(start_weights(), compression=kind.compression(codec)),
        OneProcess(start_weights()),
    )
    train(trainer, expected)
    check(trainer, expected, {"own": TOLERANCE, "fp16": 3e-3, "bf16": 3e-2}.get(codec, 1))
    if codec == "own":
        assert Halved.shapes == {w.shape for w in start_weights()}
    else:
        assert largest_difference(trainer, expected) > 1e-6, "nothing was compressed"
        assert largest_difference(trainer, OneProcess(start_weights())) > 1e-3, "no training"


@trainers_that(lambda kind: kind.freezes)
@pytest.mark.parametrize("numbers", [(0, 1), (2, 3)])
def test_parameters_frozen_at_first_are_trained_after_unfreezing(kind, numbers):
    """All parameters are trained from the third step on."""
    trainer, expected = kind(start_weights()), OneProcess(start_weights())
    trainer.freeze(numbers)
    expected.frozen = numbers
    train(trainer, expected, range(2))
    for i in numbers:
        np.testing.assert_array_equal(trainer.weights()[i], start_weights()[i])
    check(trainer, expected)
    if kind.thaws:
        trainer.freeze(())
        expected.frozen = ()
        train(trainer, expected, range(2, 5))
        check(trainer, expected)


@trainers_that(lambda kind: kind.skips_layers)
def test_a_layer_that_only_some_ranks_use_is_updated_on_all_ranks(kind, rank, size):
    """All ranks update the layer with the gradients of the ranks that used the layer."""
    trainer, expected = kind(start_weights()), OneProcess(start_weights())
    for step in range(4):
        layers = [2 if r == step % size else 1 for r in range(size)]
        trainer.train(batch_of(rank, step), layers=layers[rank])
        expected.train(joined(step, 4, range(size)), layers)
    check(trainer, expected)


@trainers_that(lambda kind: kind.scales_loss)
@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_an_overflow_on_one_rank_skips_the_step_on_all_ranks(kind, bad, rank, size):
    """The framework's loss scaler skips the step; its scale stays equal on all ranks."""
    trainer, expected = kind(start_weights()), OneProcess(start_weights())
    trainer.scale_loss()
    for step in range(5):
        overflows, before = step in (1, 2), trainer.weights()
        trainer.train(batch_of(rank, step), factor=bad if overflows and rank == size - 1 else 1)
        if overflows:
            assert all((a == b).all() for a, b in zip(before, trainer.weights()))
        else:
            expected.train(joined(step, 4, range(size)))
    check(trainer, expected)


@every_trainer
def test_concurrent_trainers_of_two_networks_do_not_mix_gradients(kind, rank):
    """The two networks have the same shapes, so mixed-up gradients would not be an error."""
    trainers = [kind(start_weights(seed)) for seed in (1, 2)]
    expected = [OneProcess(start_weights(seed)) for seed in (1, 2)]
    in_any_order = not kind.waits and os.environ.get("MXNET_ENGINE_TYPE") != "NaiveEngine"
    for step in range(3):  # the first step compares the networks of all ranks
        for i in (1, 0) if step and rank == 0 and in_any_order else (0, 1):
            train(trainers[i], expected[i], [step + 10 * i])
    for each, alone in zip(trainers, expected):
        check(each, alone)


@trainers_that(lambda kind: hasattr(kind, "another"))
def test_two_optimizers_of_one_network_have_separate_states(kind, rank):
    """Each optimizer has separate momentum and sends only the gradients of its steps."""
    trainers, expected = [kind(start_weights())], [OneProcess(start_weights()) for _ in range(2)]
    trainers.append(trainers[0].another())
    expected[1].weights = expected[0].weights
    for step, i in enumerate((0, 1, 1, 0)):
        train(trainers[i], expected[i], [step])
    check(trainers[0], expected[0])


@trainers_that(lambda kind: kind.numbered)
def test_an_extra_optimizer_on_one_rank_is_an_error(kind, rank, several):
    """Without the error, ranks would wait for each other's tensors, because the names differ."""
    if rank == 1:
        kind.make_alone(start_weights())
    with pytest.raises(kind.errors, match="rank 0: .*rank 1: .*(on all ranks|on every rank)"):
        kind(start_weights()).train(batch_of(rank, 0))
    kind.end_all()
    if rank != 1:
        kind.make_alone(start_weights())
    train(kind(start_weights()), OneProcess(start_weights()))


@trainers_that(lambda kind: kind.joins)
def test_ranks_with_fewer_batches_may_join_early(kind, rank, size):
    """The last rank to join has done all steps, so other ranks take its weights and states."""
    trainer, expected = kind(start_weights()), OneProcess(start_weights())
    for epoch in range(3):
        steps = [2 + 3 * ((r + epoch) % size) for r in range(size)]
        for step in range(max(steps)):
            number = 100 * epoch + step
            if step < steps[rank]:
                trainer.train(batch_of(rank, number))
            expected.train(joined(number, 4, [r for r in range(size) if step < steps[r]]))
        trainer.follow(hvd.join())
    check(trainer, expected)


@trainers_that(lambda kind: kind.names_of_both)
def test_ranks_with_different_networks_get_an_error_that_names_the_layer(kind, rank, size, several):
    with pytest.raises(kind.errors) as caught:
        trainer = kind(start_weights(hidden=8 + (rank == 0)))
        trainer.train(batch_of(rank, 0))
        trainer.weights()
    kind.end_all()
    text = str(caught.value)
    assert all(part in text for part in kind.names_of_both), text
    texts = hvd.allgather_object(re.findall("ranks disagree.*", text)[-1])
    assert texts == texts[:1] * size or not kind.one_error


@pytest.mark.parametrize("everywhere", [True, False])
@trainers_that(lambda kind: "process_set" in kind.takes)
def test_only_ranks_of_a_process_set_train_together(kind, everywhere, rank, size, several):
    """Ranks outside of the set train alone or not at all. Afterwards, all ranks train together."""
    some = hvd.add_process_set(range(1, size))
    ranks = some.ranks if some.included() else [rank]
    try:
        for group, of in ((some, ranks), (hvd.global_process_set, range(size))):
            if everywhere or group.included():
                trainer = kind(start_weights(), process_set=group)
                expected = OneProcess(start_weights())
                train(trainer, expected, ranks=of)
                assert largest_difference(trainer, expected) <= TOLERANCE
    finally:
        hvd.remove_process_set(some)


@trainers_that(lambda kind: "process_set" in kind.takes)
def test_two_process_sets_can_train_two_different_networks(kind, rank, size, several):
    halves = [hvd.add_process_set(part) for part in (range(size // 2), range(size // 2, size))]
    own = next(half for half in halves if half.included())
    try:
        seed = min(own.ranks)
        trainer, expected = (
            kind(start_weights(seed), process_set=own),
            OneProcess(start_weights(seed)),
        )
        train(trainer, expected, ranks=own.ranks)
        assert largest_difference(trainer, expected) <= TOLERANCE
    finally:
        for half in halves:
            hvd.remove_process_set(half)
