"""A wrong argument of any type raises at the call and names itself; the job goes on."""

import keras
import pytest
import tensorflow as tf
from wrong_calls import VERBS, check_refused, check_verb

import hvdlite.keras
import hvdlite.tensorflow as hvd


@pytest.mark.parametrize("verb", [verb for verb in VERBS if hasattr(hvd, verb)])
def test_the_wrong_argument_is_named(verb, rank, size):
    check_verb(hvd, verb, tf.ones((size, 2)), rank)


@pytest.mark.parametrize("verb", ["allreduce", "allgather", "broadcast", "reducescatter"])
def test_keras_names_the_wrong_argument(verb, rank, size):
    check_verb(hvdlite.keras, verb, tf.ones((size, 2)), rank)


def test_in_a_function_it_raises_while_it_is_traced(rank):
    @tf.function
    def traced(x):
        return hvd.reducescatter(hvd.broadcast(x, "0"), op="sum")

    with pytest.raises(ValueError, match="root_rank is '0': expected a rank of the job"):
        traced(tf.ones(2))


def test_variables_and_optimizers(rank):
    variables = [tf.Variable(1.0)]
    check_refused(hvd.broadcast_, rank, variables=variables, root_rank=0, name="good")
    check_refused(hvd.broadcast_variables, rank, variables=variables, root_rank=0)
    check_refused(hvdlite.keras.broadcast_variables, rank, variables=variables)
    check_refused(
        hvdlite.keras.DistributedOptimizer, rank, but=("name",), optimizer=keras.optimizers.SGD(0.1)
    )
