"""DistributedOptimizer: any optimizer of Keras 3, fed with gradients averaged over ranks."""

from typing import Any, Dict, Optional, Sequence

import keras

from hvdlite.core.names import owner_name
from hvdlite.core.process_set import global_process_set
from hvdlite.core.reduce_ops import Average
from hvdlite.keras.averaging import average
from hvdlite.training.codecs import NoneCompressor
from hvdlite.training.local_layers import average_all_but, weights_of
from hvdlite.training.plan import Plan, check_passes, reduction_of


def DistributedOptimizer(
    optimizer, name=None, device_dense="", device_sparse="", compression=NoneCompressor,
    sparse_as_dense=False, gradient_predivide_factor=1.0, op=Average, num_groups=0, groups=None,
    backward_passes_per_step=1, average_aggregated_gradients=False, process_set=global_process_set,
    scale_local_gradients=True,
):  # fmt: skip
    """Return the optimizer; it now averages gradients over all ranks before it applies them::

        model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(1e-3)), loss)

    It stays the same object, with its states, of a subclass of its class with the same name: a
    saved model needs no hvdlite. Averaged gradients are clipped, as those of one process on all
    ranks' batches joined would be.

    :param optimizer: of Keras 3, on any backend; also a ``LossScaleOptimizer``. With a
        ``mixed_float16`` policy it becomes one: all ranks must skip the same steps.
    :param name: ignored, as ``device_dense`` and ``device_sparse`` are.
    :param compression: Compression.none or fp16, or a class like them.
    :param sparse_as_dense: send ``tf.IndexedSlices`` whole, not as the rows of all ranks.
    :param gradient_predivide_factor: f: gradients are divided by f before they are summed, and
        multiplied by f / size after it.
    :param op: Average, Sum or Adasum.
    :param backward_passes_per_step: how many passes are added up before they are sent.
    :param average_aggregated_gradients: divide what was added up by the number of passes.
    :param num_groups: or ``groups``: in how many groups they are sent; 0: by their bytes.
    :param process_set: the ranks among which.
    :param scale_local_gradients: divide the gradients of ``register_local_var`` by the ranks.
    :raises ValueError: an argument that makes no sense; the optimizer is one already.
    """
    if isinstance(optimizer, _Distributed) or not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ValueError(f"expected a plain optimizer of Keras, got {type(optimizer).__name__}")
    reduction = reduction_of(
        compression, sparse_as_dense, op, gradient_predivide_factor, groups, num_groups, process_set
    )
    passes = check_passes(backward_passes_per_step)
    mixed = keras.config.dtype_policy().name == "mixed_float16"
    if mixed and not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    if passes > 1:
        _accumulate(optimizer, passes)
    kind = type(optimizer)
    settings = {
        "__module__": kind.__module__,
        "_plan": Plan("optimizer", reduction),  # of a copy that Keras makes
        "_sum_of_passes": 1 if average_aggregated_gradients else passes,
        "_scale_local": scale_local_gradients,
    }
    scales_loss = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    mixin = _DistributedLossScale if scales_loss else _Distributed
    optimizer.__class__ = type(kind.__name__, (mixin, kind), settings)
    object.__setattr__(optimizer, "_local", set())
    object.__setattr__(optimizer, "_plan", Plan(owner_name("optimizer"), reduction))
    return optimizer


def PartialDistributedOptimizer(optimizer, *args, local_layers=None, **kwargs):
    """Do what :func:`DistributedOptimizer` does, but leave some layers to each rank alone.

    :param optimizer: and all others: as there.
    :param local_layers: a layer or several, whose gradients are not averaged.
    """
    optimizer = DistributedOptimizer(optimizer, *args, **kwargs)
    for variable in weights_of(local_layers):
        optimizer.register_local_var(variable)
    return optimizer


def _accumulate(optimizer, passes: int) -> None:
    """Have Keras add up the gradients; it must know so before it builds the optimizer."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if inner.built or inner.gradient_accumulation_steps:
        raise ValueError(
            "backward_passes_per_step: expected an optimizer that was not built yet, and without "
            "gradient_accumulation_steps of its own"
        )
    inner.gradient_accumulation_steps = passes


class _Distributed:
    """What is added to an optimizer."""

    _local: Any = frozenset()  # a set; of a copy that Keras makes from its configuration
    _plan: Plan

    def register_local_var(self, var) -> None:
        """Keep the gradient of a variable that only this rank has."""
        self._local.add(id(var))

    def _backend_apply_gradients(self, grads, trainable_variables):
        object.__setattr__(self, "_updating", trainable_variables)  # some may have no gradient
        if not self.gradient_accumulation_steps:
            grads = self._averaged(grads, trainable_variables)
        super()._backend_apply_gradients(grads, trainable_variables)

    def _clip_gradients(self, grads):
        """Average here if Keras adds up several passes: this comes between that and their use."""
        if self.gradient_accumulation_steps:
            grads = [grad * self._sum_of_passes for grad in self._averaged(grads, self._updating)]
        return super()._clip_gradients(grads)

    def _averaged(self, grads, variables):
        def divide(grad):
            size = self._plan.reduction.process_set.size() if self._scale_local else 1
            return None if grad is None else grad / size

        return average_all_but(
            self._local, variables, grads, lambda grads: average(grads, self._plan), divide
        )


class _DistributedLossScale(_Distributed):
    """What is added to a LossScaleOptimizer: an overflow on any rank must be one on all.

    So its scaled gradients are averaged before it looks at them, at every pass.
    """

    def apply(self, grads, trainable_variables=None):
        """Average, then do what the optimizer does."""
        super().apply(self._of_step(grads, trainable_variables), trainable_variables)

    def stateless_apply(self, optimizer_variables, grads, trainable_variables):
        """Do the same where JAX keeps the state."""
        grads = self._of_step(grads, None)
        return super().stateless_apply(optimizer_variables, grads, trainable_variables)

    def _of_step(self, grads, variables):
        grads = self._averaged(list(grads), variables or self._trainable_variables)
        return [grad if grad is None else grad * self._sum_of_passes for grad in grads]


def load_model(
    filepath, custom_optimizers: Optional[Sequence[type]] = None,
    custom_objects: Optional[Dict[str, Any]] = None, compression=NoneCompressor, legacy_opts=False,
):  # fmt: skip
    """Return a model that was saved with a plain or a distributed optimizer, with the latter.

    Its states, such as momentum, are those that were saved.

    :param filepath: what ``keras.models.load_model`` takes.
    :param custom_optimizers: classes of optimizers that are not Keras's own.
    :param custom_objects: by name, other classes and functions of the model.
    :param compression: for ``DistributedOptimizer``.
    :param legacy_opts: ignored: Keras 3 has none.
    :raises ValueError: the model was saved without an optimizer.
    """
    objects = {each.__name__: each for each in custom_optimizers or ()}
    model = keras.models.load_model(filepath, {**objects, **(custom_objects or {})})
    if getattr(model, "optimizer", None) is None:
        raise ValueError(f"{filepath}: the model was saved without an optimizer: it has no state")
    model.optimizer = DistributedOptimizer(model.optimizer, compression=compression)
    return model
