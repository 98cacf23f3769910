"""Where this process is, as tensors that are asked for when a graph runs, not when it is made."""

from typing import Callable, Optional

import numpy as np
import tensorflow as tf

from hvdlite.core import topology
from hvdlite.core.registry import process_set_of


def _query(ask: Callable[[], int], name: Optional[str]):
    value = tf.numpy_function(lambda: np.int32(ask()), [], tf.int32, name=name)
    value.set_shape([])
    return value


def rank_op(name: Optional[str] = None):
    """Return :func:`hvdlite.rank`, asked for when the graph runs; so do the others here."""
    return _query(topology.rank, name)


def local_rank_op(name: Optional[str] = None):
    """Return :func:`hvdlite.local_rank`."""
    return _query(topology.local_rank, name)


def local_size_op(name: Optional[str] = None):
    """Return :func:`hvdlite.local_size`."""
    return _query(topology.local_size, name)


def size_op(process_set_id: int = 0, name: Optional[str] = None):
    """Return the number of ranks of a process set, by default of all."""
    return _query(lambda: process_set_of(process_set_id).size(), name)


def process_set_included_op(process_set_id: int = 0, name: Optional[str] = None):
    """Return 1 if this process is in the process set, else 0."""
    return _query(lambda: int(process_set_of(process_set_id).included()), name)
