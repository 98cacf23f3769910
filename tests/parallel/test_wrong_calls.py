"""A wrong argument of any type raises at the call and names itself; the job goes on."""

import mxnet as mx
import numpy as np
import pytest
from wrong_calls import NO_SET, NO_WHOLE, check_refused, check_verb, forms_of

import hvdlite as hvd
import hvdlite.numpy as neutral


@forms_of(neutral)
def test_numpy_names_the_wrong_argument(verb, rank, size):
    check_verb(neutral, verb, np.ones((size, 2)), rank)


@forms_of(hvd)
def test_mxnet_names_the_wrong_argument(verb, rank, size):
    check_verb(hvd, verb, mx.nd.ones((size, 2)), rank)


@pytest.mark.parametrize(
    "function, good",
    [
        (hvd.broadcast_object, {"obj": 1}),
        (hvd.allgather_object, {"obj": 1}),
        (hvd.broadcast_parameters, {"params": {"w": mx.nd.ones(2)}, "root_rank": 0}),
        (hvd.barrier, {}),
        (hvd.join, {}),
        (hvd.DistributedSampler, {"length": 8, "seed": 1}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_other_collectives_name_the_wrong_argument(function, good, rank):
    check_refused(function, rank, **good)


def test_trainers_and_optimizers_name_the_wrong_argument(rank):
    sgd = mx.optimizer.SGD(learning_rate=0.1)
    check_refused(hvd.DistributedOptimizer, rank, optimizer=sgd)
    weight = {"w": mx.gluon.Parameter("w", shape=(1,))}
    weight["w"].initialize()
    check_refused(hvd.DistributedTrainer, rank, params=weight, optimizer="sgd", optimizer_params={})


@pytest.mark.parametrize(
    "splits", ["1", b"1", 5, [None], ["1"], [True], [float("nan")], [[1], [1, 2]], [-1], [10**30]]
)
def test_wrong_splits_raise_on_every_rank(splits, rank, size):
    """They are told to all ranks, which wait for the row counts."""
    given = splits * size if isinstance(splits, list) and len(splits) == 1 else splits
    for _ in range(2):
        with pytest.raises(ValueError, match="rank 0: tensor 'alltoall.t': splits"):
            neutral.alltoall(np.ones((size, 2)), given if rank == 0 else [1] * size, "t")
    assert neutral.alltoall(np.ones((size, 2)), name="t").shape == (size, 2)


@pytest.mark.parametrize("ranks", [b"x", "01", "", None, 5, [0.0], [True], ["0"], [None], 1.5])
def test_a_process_set_of_no_ranks_is_refused(ranks):
    with pytest.raises(ValueError, match="ranks is .*expected a list of ranks"):
        hvd.ProcessSet(ranks)
    with pytest.raises(ValueError, match="ranks is .*expected a list of ranks"):
        hvd.add_process_set(ranks)


def test_a_process_set_of_numpys_ranks(size):
    made = hvd.add_process_set(np.arange(size - 1)) if size > 1 else hvd.global_process_set
    assert made.ranks == list(range(max(size - 1, 1)))
    hvd.remove_process_set(made)


@pytest.mark.parametrize("process_set", NO_SET)
def test_what_is_no_process_set_is_not_removed(process_set):
    with pytest.raises(ValueError, match="process_set is .*expected a ProcessSet"):
        hvd.remove_process_set(process_set)


@pytest.mark.parametrize("dataset", ["sum", b"x", None, 1.5, True, -1, float("nan")])
def test_a_sampler_of_no_data_set_is_refused(dataset):
    with pytest.raises(ValueError, match="dataset is .*expected anything with a length"):
        hvd.elastic.ElasticSampler(dataset)


@pytest.mark.parametrize("seed", [value for value in NO_WHOLE if value is not True] + [-1, None])
def test_a_samplers_wrong_seed_is_refused(seed):
    with pytest.raises(ValueError, match="seed is .*expected a whole number"):
        hvd.elastic.ElasticSampler(10, seed=seed)
