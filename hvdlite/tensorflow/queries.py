"""Tensors that tell a graph its rank, the number of ranks, and other facts of the job."""

from typing import Callable, Optional

import numpy as np
import tensorflow as tf

from hvdlite.core import topology
from hvdlite.core.registry import process_set_of
from hvdlite.tensorflow.exchange import node


def _query(ask: Callable[[], int], name: Optional[str]):
    if tf.executing_eagerly():
        return tf.constant(ask())
    (value,) = node(lambda: np.int32(ask()), [], [tf.int32], name=name)
    value.set_shape([])
    return value


def rank_op(name: Optional[str] = None):
    """Return a tensor with :func:`hvdlite.rank` at the time when the graph runs."""
    return _query(topology.rank, name)


def local_rank_op(name: Optional[str] = None):
    """Return a tensor with :func:`hvdlite.local_rank` at the time when the graph runs."""
    return _query(topology.local_rank, name)


def local_size_op(name: Optional[str] = None):
    """Return a tensor with :func:`hvdlite.local_size` at the time when the graph runs."""
    return _query(topology.local_size, name)


def size_op(process_set_id: int = 0, name: Optional[str] = None):
    """Return a tensor with the number of ranks of a process set; the default is the whole job."""
    return _query(lambda: process_set_of(process_set_id).size(), name)


def process_set_included_op(process_set_id: int = 0, name: Optional[str] = None):
    """Return a tensor that is 1 if this rank is in the process set, otherwise 0."""
    return _query(lambda: int(process_set_of(process_set_id).included()), name)
