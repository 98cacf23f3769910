"""Compares the weights and states of a tf.compat.v1 optimizer between ranks before each update."""

from functools import partial
from typing import List, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf

from hvdlite.tensorflow.exchange import gate
from hvdlite.training.state_check import StateCheck

_VALUES = 64  # approximate number of values in the sample of a variable; at least 4 rows
_VARIABLES = 16  # largest number of sampled variables, because each costs several microseconds
_FLOATS = (tf.float32, tf.float64)  # smaller floats are rounded too coarsely to be compared
REMEDY = (
    "Restore a checkpoint on every rank, or broadcast what one rank has loaded, before the first "
    "step: hvd.BroadcastGlobalVariablesHook(0), or run hvd.broadcast_global_variables(0)"
)


def compare(check: StateCheck, optimizer, pairs: Sequence[Tuple], global_step, local) -> List:
    """Return tensors on which the update must depend, because they compare the ranks' states.

    :param pairs: (gradient, variable), as for ``apply_gradients``.
    :param local: the ``id`` of each variable that differs between ranks.
    """
    grads, trained = zip(*[pair for pair in pairs if pair[0] is not None])
    with tf.init_scope():
        optimizer._create_slots(trained)  # apply_gradients() would make the slots after this check
    shared = [variable for variable in trained if id(variable) not in local]
    shared = shared[:: -(-len(shared) // _VARIABLES) or 1]
    states = [("weights", variable) for variable in shared]
    slots: set = set()
    for name in optimizer.get_slot_names():
        slots.update(id(optimizer.get_slot(variable, name)) for variable in trained)
        states += [(name, optimizer.get_slot(variable, name)) for variable in shared]
    states += [("other states", v) for v in optimizer.variables() if id(v) not in slots]
    states += [("the global step", global_step)]
    # Sample the states after the gradients: an error about gradients must come first on all ranks.
    with tf.control_dependencies([] if tf.executing_eagerly() else [tf.group(*grads)]):
        sampled = [(kind, _sample(state)) for kind, state in states if state is not None]
        sampled = [(kind, sample) for kind, sample in sampled if sample is not None]
        if not sampled:
            return []
        kinds, samples = zip(*sampled)
        skips = tf.compat.v1.executing_eagerly_outside_functions()
        return gate(partial(check.start, kinds, skips=skips), samples)


def _sample(variable) -> Optional[tf.Tensor]:
    """Return a few values of the variable. Reading the whole variable might copy it."""
    shape, dtype = variable.shape, variable.dtype.base_dtype
    if not (dtype in _FLOATS or dtype.is_integer) or not shape.num_elements():
        return None
    if not shape.rank:
        return tf.identity(variable)
    outer = shape[:-1] if shape.rank > 1 else shape
    count = max(4, _VALUES // (shape[-1] if shape.rank > 1 else 1))
    total = outer.num_elements()
    rows = np.unique(np.linspace(0, total - 1, min(count, total)).astype(np.int64))
    return tf.gather_nd(variable, np.stack(np.unravel_index(rows, outer), -1))
