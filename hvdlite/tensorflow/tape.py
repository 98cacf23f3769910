"""Tapes and optimizers that average their gradients over ranks."""

from typing import List, Sequence

import tensorflow as tf

from hvdlite.core.names import calling_line, owner_name
from hvdlite.core.process_set import global_process_set
from hvdlite.core.reduce_ops import Average
from hvdlite.tensorflow.exchange import name_of
from hvdlite.tensorflow.gradients import average, divide
from hvdlite.tensorflow.states import REMEDY, compare
from hvdlite.training.codecs import NoneCompressor
from hvdlite.training.plan import (
    GradientReducer,
    Reduction,
    average_all_but,
    check_passes,
    keep_local,
    reduction_of,
)
from hvdlite.training.state_check import StateCheck
from hvdlite.training.step_check import SAME_VARIABLES, StepCheck, name_of_variable

_SAME_TAPE = (
    "Give gradient() the same variables in the same order on every rank, and use each of them in "
    f"the loss on every rank or on none. {SAME_VARIABLES}"
)


def DistributedGradientTape(
    gradtape, device_dense="", device_sparse="", compression=NoneCompressor, sparse_as_dense=False,
    op=Average, gradient_predivide_factor=1.0, num_groups=0, groups=None,
    process_set=global_process_set, scale_local_gradients=True,
):  # fmt: skip
    """Make the tape's ``gradient`` return averages over all ranks; return the tape::

        with tf.GradientTape() as tape:
            loss = ...
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)

    The tape stays the same object; its class becomes a subclass. In eager mode gradients are sent
    when backward has computed all of them; in ``tf.function``, when backward has computed 1 MiB.

    :param gradtape: a ``tf.GradientTape``; ``device_dense`` and ``device_sparse`` are ignored.
    :param compression: Compression.none or fp16, or a class with the same methods.
    :param sparse_as_dense: send ``tf.IndexedSlices`` as whole tensors instead of rows.
    :param op: Average, Sum or Adasum.
    :param gradient_predivide_factor: f: gradients are divided by f before they are summed, and the
        sum is multiplied by f / size.
    :param num_groups: the number of groups in which gradients are sent, like ``groups``; 0: groups
        of 1 MiB or more.
    :param process_set: the ranks that average.
    :param scale_local_gradients: divide the gradients of variables that were passed to
        ``register_local_source`` by the number of ranks.
    :raises ValueError: a wrong argument; or the tape is already distributed.
    """
    if isinstance(gradtape, _Distributed) or not isinstance(gradtape, tf.GradientTape):
        is_ours = " that is distributed already" if isinstance(gradtape, _Distributed) else ""
        got = f"{type(gradtape).__name__}{is_ours}"
        raise ValueError(f"DistributedGradientTape: expected a plain tf.GradientTape, got {got}")
    kind = type(gradtape)
    gradtape.__class__ = type(kind.__name__, (_Distributed, kind), {})
    reduction = reduction_of(
        compression, sparse_as_dense, op, gradient_predivide_factor, groups, num_groups, process_set
    )
    gradtape._averages = _Averages(reduction, scale_local_gradients)
    return gradtape


def PartialDistributedGradientTape(gradtape, *args, local_layers=None, **kwargs):
    """Do what :func:`DistributedGradientTape` does, but do not average gradients of some layers.

    :param gradtape: as for :func:`DistributedGradientTape`, like all other arguments.
    :param local_layers: a layer, or several layers, whose gradients are not averaged.
    """
    tape = DistributedGradientTape(gradtape, *args, **kwargs)
    keep_local(tape.register_local_source, local_layers)
    return tape


class _Averages:
    """Averages the gradients of a tape or an optimizer, except those of local variables.

    :ivar local: the ``id`` of each local variable.
    """

    def __init__(self, reduction: Reduction, scale_local: bool) -> None:
        self.reduction, self._scale_local = reduction, scale_local
        self.local: set = set()

    def of(self, grads: Sequence, variables: Sequence, reducer: GradientReducer) -> List:
        """Return averages, or for local variables this rank's gradients."""
        size = self.reduction.process_set.size() if self._scale_local else 1
        names = [_name(variable) for variable in variables if id(variable) not in self.local]
        return average_all_but(
            self.local, variables, grads,
            average=lambda grads: average(grads, reducer, tf.constant(0), names),
            divide=lambda grad: divide(grad, size),
        )  # fmt: skip


def _name(source) -> str:
    return name_of_variable(source) if isinstance(source, tf.Variable) else "a tensor"


class _Distributed:
    """The methods that hvdlite adds to a tape."""

    _averages: _Averages

    def register_local_source(self, source) -> None:
        """Do not average the gradient of this variable."""
        self._averages.local.add(id(source))

    def gradient(self, target, sources, output_gradients=None, *args, **kwargs):
        """Return gradients averaged over ranks; arguments are as for ``GradientTape.gradient``."""
        kwargs.pop("use_generic_names", None)  # Horovod's option; hvdlite ignores tensors' names
        place = calling_line()
        grads = super().gradient(target, sources, output_gradients, *args, **kwargs)
        flat = tf.nest.flatten(grads, expand_composites=False)
        reduction = self._averages.reduction
        name = name_of("tape", f"tape.{place}", reduction.process_set)
        facts = name, "1 step", reduction.process_set, "the tape's gradients", _SAME_TAPE
        check = StepCheck(*facts, counted=False)
        reducer = GradientReducer(name, reduction, check)
        results = self._averages.of(flat, tf.nest.flatten(sources), reducer)
        return tf.nest.pack_sequence_as(sources, results)

    def get_local_and_global_gradients(self, target, sources, output_gradients=None, **kwargs):
        """Return two lists of (variable, gradient): for local variables, and for all others."""
        pairs = list(zip(sources, self.gradient(target, sources, output_gradients, **kwargs)))
        local = self._averages.local
        own = [pair for pair in pairs if id(pair[0]) in local]
        return own, [pair for pair in pairs if id(pair[0]) not in local]


def DistributedOptimizer(
    optimizer, name=None, use_locking=False, device_dense="", device_sparse="",
    compression=NoneCompressor, sparse_as_dense=False, backward_passes_per_step=1, op=Average,
    gradient_predivide_factor=1.0, average_aggregated_gradients=False, num_groups=0, groups=None,
    process_set=global_process_set, scale_local_gradients=True,
):  # fmt: skip
    """Make the optimizer average gradients over all ranks before it applies them; return it.

    :param optimizer: an optimizer of Keras 3 (see ``hvdlite.keras.DistributedOptimizer``), or of
        ``tf.compat.v1.train``, whose ``compute_gradients`` then averages.
    :param backward_passes_per_step: the number of backward passes whose sum is averaged; must be 1
        for an optimizer of ``tf.compat.v1.train``.
    :param name: ignored, like ``use_locking``, ``device_dense`` and ``device_sparse``.
    :param compression: as for ``DistributedGradientTape``, like all other arguments.
    :raises ValueError: a wrong argument; or the optimizer is already distributed.
    """
    shared = {
        "compression": compression, "sparse_as_dense": sparse_as_dense, "op": op,
        "gradient_predivide_factor": gradient_predivide_factor, "num_groups": num_groups,
        "groups": groups, "process_set": process_set,
    }  # fmt: skip
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        # imported here, because hvdlite.keras.optimizer imports this module
        from hvdlite.keras.optimizer import DistributedOptimizer as of_keras

        return of_keras(
            optimizer, backward_passes_per_step=backward_passes_per_step,
            average_aggregated_gradients=average_aggregated_gradients,
            scale_local_gradients=scale_local_gradients, **shared,
        )  # fmt: skip
    if isinstance(optimizer, _OptimizerInGraph):
        raise ValueError("the optimizer is distributed already: pass a plain optimizer")
    if check_passes(backward_passes_per_step) > 1:
        raise ValueError(
            f"backward_passes_per_step is {backward_passes_per_step}: expected 1 with an optimizer "
            "of tf.compat.v1.train; Keras's optimizers take more"
        )
    kind = type(optimizer)
    optimizer.__class__ = type(kind.__name__, (_OptimizerInGraph, kind), {})
    reduction = reduction_of(**shared)
    optimizer._averages = _Averages(reduction, scale_local_gradients)
    owner = owner_name("optimizer", reduction.process_set)
    check = StepCheck(owner, "1 pass a step", reduction.process_set)
    optimizer._reducer = GradientReducer(owner, reduction, check)
    optimizer._state_check = StateCheck(owner, reduction.process_set, REMEDY)
    return optimizer


class _OptimizerInGraph:
    """The methods that hvdlite adds to an optimizer of ``tf.compat.v1.train``."""

    _averages: _Averages
    _reducer: GradientReducer
    _state_check: StateCheck

    def register_local_var(self, var) -> None:
        """Do not average the gradient of this variable."""
        self._averages.local.add(id(var))

    def compute_gradients(self, *args, **kwargs):
        """Return pairs (averaged gradient, variable); arguments are as for TensorFlow's method."""
        pairs = super().compute_gradients(*args, **kwargs)
        grads, variables = [grad for grad, _ in pairs], [variable for _, variable in pairs]
        return list(zip(self._averages.of(grads, variables, self._reducer), variables))

    def apply_gradients(self, grads_and_vars, global_step=None, *args, **kwargs):
        """Compare the ranks' states, then call TensorFlow's method."""
        pairs, done = list(grads_and_vars), []
        has_any = any(grad is not None for grad, _ in pairs)  # TensorFlow raises if there is none
        if has_any and not self._averages.reduction.is_alone():
            done = compare(self._state_check, self, pairs, global_step, self._averages.local)
        with tf.control_dependencies(done):
            return super().apply_gradients(pairs, global_step, *args, **kwargs)
