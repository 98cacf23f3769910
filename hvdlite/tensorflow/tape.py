"""Distributed tapes and optimizers: their gradients are averaged over ranks."""

from typing import List, Sequence

import tensorflow as tf

from hvdlite.core.names import calling_line, owner_name
from hvdlite.core.process_set import global_process_set
from hvdlite.core.reduce_ops import Average
from hvdlite.tensorflow.compression import NoneCompressor
from hvdlite.tensorflow.exchange import name_of
from hvdlite.tensorflow.gradients import average, divided
from hvdlite.training.plan import (
    GradientReducer,
    Reduction,
    average_all_but,
    check_passes,
    keep_local,
    reduction_of,
)
from hvdlite.training.step_check import StepCheck


def DistributedGradientTape(
    gradtape, device_dense="", device_sparse="", compression=NoneCompressor, sparse_as_dense=False,
    op=Average, gradient_predivide_factor=1.0, num_groups=0, groups=None,
    process_set=global_process_set, scale_local_gradients=True,
):  # fmt: skip
    """Return the tape; its ``gradient`` is now averaged over all ranks::

        with tf.GradientTape() as tape:
            loss = ...
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)

    The tape stays the same object; its class becomes a subclass. Eagerly, gradients are sent when
    backward has computed all of them; inside ``tf.function``, as soon as backward has 1 MiB.

    :param gradtape: a ``tf.GradientTape``; ``device_dense`` and ``device_sparse`` are ignored.
    :param compression: Compression.none or fp16, or a class like them.
    :param sparse_as_dense: send ``tf.IndexedSlices`` as whole tensors instead of rows.
    :param op: Average, Sum or Adasum.
    :param gradient_predivide_factor: f: gradients are divided by f before they are summed, and
        multiplied by f / size after it.
    :param num_groups: or ``groups``: the number of groups of gradients; 0: group by bytes.
    :param process_set: the ranks that average.
    :param scale_local_gradients: divide gradients of ``register_local_source`` by the number of
        ranks.
    :raises ValueError: a wrong argument; or the tape is distributed already.
    """
    if isinstance(gradtape, _Distributed) or not isinstance(gradtape, tf.GradientTape):
        raise ValueError(f"expected a plain tf.GradientTape, got {type(gradtape).__name__}")
    kind = type(gradtape)
    gradtape.__class__ = type(kind.__name__, (_Distributed, kind), {})
    reduction = reduction_of(
        compression, sparse_as_dense, op, gradient_predivide_factor, groups, num_groups, process_set
    )
    gradtape._averages = _Averages(reduction, scale_local_gradients)
    return gradtape


def PartialDistributedGradientTape(gradtape, *args, local_layers=None, **kwargs):
    """Do what :func:`DistributedGradientTape` does, but do not average some layers.

    :param gradtape: like all other arguments, as for :func:`DistributedGradientTape`.
    :param local_layers: a layer or several, whose gradients are not averaged.
    """
    tape = DistributedGradientTape(gradtape, *args, **kwargs)
    keep_local(tape.register_local_source, local_layers)
    return tape


class _Averages:
    """How a tape or an optimizer averages the gradients of all but some variables.

    :ivar local: the ``id`` of each variable that only this rank has.
    """

    def __init__(self, reduction: Reduction, scale_local: bool) -> None:
        self.reduction, self._scale_local = reduction, scale_local
        self.local: set = set()

    def of(self, grads: Sequence, variables: Sequence, reducer: GradientReducer) -> List:
        """Return the gradients of the variables."""
        size = self.reduction.process_set.size() if self._scale_local else 1
        return average_all_but(
            self.local, variables, grads,
            average=lambda grads: average(grads, reducer, reducer.step_check and tf.constant(0)),
            divide=lambda grad: divided(grad, size),
        )  # fmt: skip


class _Distributed:
    """The methods that hvdlite adds to a tape."""

    _averages: _Averages

    def register_local_source(self, source) -> None:
        """Keep the gradient of a variable that only this rank has."""
        self._averages.local.add(id(source))

    def gradient(self, target, sources, output_gradients=None, *args, **kwargs):
        """Return the gradients, averaged over ranks; arguments are those of ``GradientTape``."""
        kwargs.pop("use_generic_names", None)  # ignored, because names are never TensorFlow's
        place = calling_line()
        grads = super().gradient(target, sources, output_gradients, *args, **kwargs)
        flat = tf.nest.flatten(grads, expand_composites=False)
        reduction = self._averages.reduction
        name = name_of("tape", f"tape.{place}", reduction.process_set)
        reducer = GradientReducer(name, reduction)
        results = self._averages.of(flat, tf.nest.flatten(sources), reducer)
        return tf.nest.pack_sequence_as(sources, results)

    def get_local_and_global_gradients(self, target, sources, output_gradients=None, **kwargs):
        """Return two lists of (variable, gradient): of local variables, and of averaged ones."""
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
    """Return the optimizer; it now averages gradients over all ranks before it applies them.

    :param optimizer: of Keras 3: then see ``hvdlite.keras.DistributedOptimizer``; or of
        ``tf.compat.v1.train``: then ``compute_gradients`` averages. It stays the same object.
    :param backward_passes_per_step: how many passes to add up before gradients are sent; only 1
        with an optimizer of ``tf.compat.v1.train``.
    :param name: ignored, as ``use_locking``, ``device_dense`` and ``device_sparse`` are.
    :param compression: and all other arguments: as for ``DistributedGradientTape`` and Keras.
    :raises ValueError: a wrong argument; or the optimizer is distributed already.
    """
    shared = {
        "compression": compression, "sparse_as_dense": sparse_as_dense, "op": op,
        "gradient_predivide_factor": gradient_predivide_factor, "num_groups": num_groups,
        "groups": groups, "process_set": process_set,
    }  # fmt: skip
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        # imported here, because that module imports this one
        from hvdlite.keras.optimizer import DistributedOptimizer as of_keras

        return of_keras(
            optimizer, backward_passes_per_step=backward_passes_per_step,
            average_aggregated_gradients=average_aggregated_gradients,
            scale_local_gradients=scale_local_gradients, **shared,
        )  # fmt: skip
    if isinstance(optimizer, _OptimizerInGraph):
        raise ValueError("the optimizer is a DistributedOptimizer already")
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
    return optimizer


class _OptimizerInGraph:
    """The methods that hvdlite adds to an optimizer of ``tf.compat.v1.train``."""

    _averages: _Averages
    _reducer: GradientReducer

    def register_local_var(self, var) -> None:
        """Keep the gradient of a variable that only this rank has."""
        self._averages.local.add(id(var))

    def compute_gradients(self, *args, **kwargs):
        """Return pairs of averaged gradient and variable, as without hvdlite."""
        pairs = super().compute_gradients(*args, **kwargs)
        grads, variables = [grad for grad, _ in pairs], [variable for _, variable in pairs]
        return list(zip(self._averages.of(grads, variables, self._reducer), variables))
