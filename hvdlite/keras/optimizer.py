"""DistributedOptimizer: a Keras 3 optimizer that averages gradients over ranks."""

import json
import os
import warnings
import zipfile
from pathlib import Path
from typing import Any, Dict, NoReturn, Optional, Sequence

import keras
from keras import ops

from hvdlite.core.names import owner_name
from hvdlite.core.process_set import global_process_set
from hvdlite.core.reduce_ops import Average
from hvdlite.core.topology import is_initialized, rank
from hvdlite.keras.averaging import after, average
from hvdlite.keras.undistributed import FILE, Name, unmarked
from hvdlite.machine import files
from hvdlite.training.codecs import NoneCompressor
from hvdlite.training.plan import (
    GradientReducer,
    average_all_but,
    check_passes,
    keep_local,
    reduction_of,
)
from hvdlite.training.step_check import StepCheck, name_of_variable


def DistributedOptimizer(
    optimizer, name=None, device_dense="", device_sparse="", compression=NoneCompressor,
    sparse_as_dense=False, gradient_predivide_factor=1.0, op=Average, num_groups=0, groups=None,
    backward_passes_per_step=1, average_aggregated_gradients=False, process_set=global_process_set,
    scale_local_gradients=True,
):  # fmt: skip
    """Make the optimizer average gradients over all ranks before it applies them; return it::

        model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(1e-3)), loss)

    The optimizer stays the same object with its states. Its class becomes a subclass of the same
    name, so a program without hvdlite can load a saved model. Clipping applies to the averages.

    :param optimizer: a Keras 3 optimizer on any backend, or a ``LossScaleOptimizer``. With a
        ``mixed_float16`` policy the result is a ``LossScaleOptimizer``, because all ranks must skip
        the same steps.
    :param name: ignored, like ``device_dense`` and ``device_sparse``.
    :param compression: Compression.none or fp16, or a class with the same methods.
    :param sparse_as_dense: send ``tf.IndexedSlices`` as whole tensors instead of rows.
    :param gradient_predivide_factor: f: gradients are divided by f before they are summed, and the
        sum is multiplied by f / size.
    :param op: Average, Sum or Adasum.
    :param backward_passes_per_step: the number of backward passes whose sum is averaged.
    :param average_aggregated_gradients: divide this sum by the number of passes.
    :param num_groups: the number of groups in which gradients are sent, like ``groups``; 0: groups
        of 1 MiB or more.
    :param process_set: the ranks that average.
    :param scale_local_gradients: divide the gradients of variables that were passed to
        ``register_local_var`` by the number of ranks.
    :raises ValueError: a wrong argument; or the optimizer is already distributed.
    """
    if isinstance(optimizer, _Distributed) or not isinstance(optimizer, keras.optimizers.Optimizer):
        is_ours = " that is distributed already" if isinstance(optimizer, _Distributed) else ""
        got = f"{type(optimizer).__name__}{is_ours}"
        raise ValueError(f"DistributedOptimizer: expected a plain optimizer of Keras, got {got}")
    reduction = reduction_of(
        compression, sparse_as_dense, op, gradient_predivide_factor, groups, num_groups, process_set
    )
    passes, optimizer = check_passes(backward_passes_per_step), unmarked(optimizer)
    mixed = keras.config.dtype_policy().name == "mixed_float16"
    if mixed and not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    if passes > 1:
        _accumulate(optimizer, passes)
    sum_of_passes = 1 if average_aggregated_gradients else passes
    adds = _inner(optimizer).gradient_accumulation_steps or 1
    passes_and_factor = f"{adds} passes a step, times {sum_of_passes}"

    def reducer(owner: str) -> GradientReducer:
        return GradientReducer(owner, reduction, StepCheck(owner, passes_and_factor, process_set))

    kind = type(optimizer)
    settings = {
        "__module__": kind.__module__,
        "_reducer": reducer("optimizer"),  # for more objects that Keras makes of the new class
        "_sum_of_passes": sum_of_passes,
        "_scale_local": scale_local_gradients,
    }
    scales_loss = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    mixin = _DistributedLossScale if scales_loss else _Distributed
    optimizer.__class__ = type(kind.__name__, (mixin, kind), settings)
    object.__setattr__(optimizer, "_local", set())
    object.__setattr__(optimizer, "_reducer", reducer(owner_name("optimizer", process_set)))
    return optimizer


def PartialDistributedOptimizer(optimizer, *args, local_layers=None, **kwargs):
    """Do what :func:`DistributedOptimizer` does, but do not average gradients of some layers.

    :param optimizer: as for :func:`DistributedOptimizer`, like all other arguments.
    :param local_layers: a layer, or several layers, whose gradients are not averaged.
    """
    optimizer = DistributedOptimizer(optimizer, *args, **kwargs)
    keep_local(optimizer.register_local_var, local_layers)
    return optimizer


def _accumulate(optimizer, passes: int) -> None:
    """Make Keras add up the gradients of several passes; call this before ``optimizer.build``."""
    inner = _inner(optimizer)
    # A loaded optimizer is built, and has the number of passes with which it was saved.
    if inner.built and inner.gradient_accumulation_steps == passes:
        return
    if inner.built or inner.gradient_accumulation_steps:
        raise ValueError(
            "backward_passes_per_step: expected an optimizer that is not built yet and has no "
            "gradient_accumulation_steps: pass a new optimizer"
        )
    inner.gradient_accumulation_steps = passes


def _inner(optimizer):
    return getattr(optimizer, "inner_optimizer", optimizer)


class _Distributed:
    """The methods that hvdlite adds to an optimizer."""

    _local: Any = frozenset()  # ids of local variables; none in objects that Keras itself makes
    _reducer: GradientReducer
    _sum_of_passes: int
    _scale_local: bool
    _trainable_variables: list  # Keras's optimizer defines this attribute and the next
    variables: list

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a DistributedOptimizer can't be copied or pickled, because the copy would be a plain "
            "optimizer, and ranks would train alone: give a plain optimizer to another "
            "hvd.DistributedOptimizer"
        )

    def register_local_var(self, var) -> None:
        """Do not average the gradient of this variable."""
        self._local.add(id(var))

    def _backend_apply_gradients(self, grads, trainable_variables):
        # _clip_gradients() needs the variables, but Keras passes only their gradients to it
        object.__setattr__(self, "_updating", trainable_variables)
        if not self.gradient_accumulation_steps:
            grads = self._averaged(grads, trainable_variables)
        with after(grads):
            super()._backend_apply_gradients(grads, trainable_variables)

    def _clip_gradients(self, grads):
        """Average the gradients here if Keras adds up passes, then clip them.

        :param grads: if Keras adds up passes, the mean over the passes.
        """
        if self.gradient_accumulation_steps:
            grads = [grad * self._sum_of_passes for grad in self._averaged(grads, self._updating)]
        return super()._clip_gradients(grads)

    def _averaged(self, grads, variables):
        def divide(grad):
            size = self._reducer.reduction.process_set.size() if self._scale_local else 1
            return None if grad is None else grad / size

        inner = _inner(self)
        step = ops.convert_to_tensor(inner._iterations)
        # A gradient is named by the number of its variable, because Keras leaves out variables that
        # are frozen or have no gradient, perhaps on some ranks only.
        numbers = [inner._get_variable_index(v) for v in variables if id(v) not in self._local]

        def of_all_ranks(grads):
            whole = [None] * len(inner._trainable_variables)
            for number, grad in zip(numbers, grads):
                whole[number] = grad
            names = [name_of_variable(each) for each in inner._trainable_variables]
            whole = average(whole, self._reducer, step, names)
            with after(whole):
                ops.convert_to_tensor(inner._iterations)  # Keras counts the step after this read
            return [whole[number] for number in numbers]

        return average_all_but(self._local, variables, grads, of_all_ranks, divide)

    def get_config(self) -> dict:
        config = super().get_config()  # type: ignore[misc]
        return {**config, "name": Name(config["name"])}

    def save_assets(self, dir_path) -> None:
        """Save the arguments of :func:`DistributedOptimizer`. Keras calls this method."""
        reduction = self._reducer.reduction
        passes = _inner(self).gradient_accumulation_steps or 1
        settings = {
            "op": reduction.op,
            "gradient_predivide_factor": reduction.predivide_factor,
            "num_groups": reduction.num_groups,
            "sparse_as_dense": reduction.sparse_as_dense,
            "scale_local_gradients": self._scale_local,
            "backward_passes_per_step": passes,
            "average_aggregated_gradients": self._sum_of_passes != passes,
        }
        local = [i for i, v in enumerate(self._trainable_variables) if id(v) in self._local]
        process_set = reduction.process_set
        ranks = None if process_set is global_process_set else process_set.ranks
        own = rank() if is_initialized() else 0
        saved = {"settings": settings, "local": local, "ranks": ranks, "rank": own}
        with files.open_named(Path(dir_path, FILE)) as file:
            json.dump(saved, file)


class _DistributedLossScale(_Distributed):
    """The methods that hvdlite adds to a LossScaleOptimizer.

    These methods average the scaled gradients in every pass, before the check for overflow. So an
    overflow on one rank is an overflow on all ranks.
    """

    def apply(self, grads, trainable_variables=None):
        """Average the gradients, then call Keras's method."""
        if not self.built:  # Keras builds it later, but _averaged() needs the variables' numbers
            with keras.name_scope(self.name, caller=self):
                self.build(trainable_variables)
        super().apply(self._of_step(grads, trainable_variables), trainable_variables)

    def stateless_apply(self, optimizer_variables, grads, trainable_variables):
        """Do what :meth:`apply` does. Keras calls this on JAX and passes the variables' values."""
        values = zip(self.variables, optimizer_variables)
        with keras.StatelessScope(state_mapping=list(values)):  # gives the variables these values
            grads = self._of_step(grads, None)
        return super().stateless_apply(optimizer_variables, grads, trainable_variables)

    def _of_step(self, grads, variables):
        grads = self._averaged(list(grads), variables or self._trainable_variables)
        return [grad if grad is None else grad * self._sum_of_passes for grad in grads]


def load_model(
    filepath, custom_optimizers: Optional[Sequence[type]] = None,
    custom_objects: Optional[Dict[str, Any]] = None, compression=NoneCompressor, legacy_opts=False,
):  # fmt: skip
    """Load a saved model, and make its optimizer a :func:`DistributedOptimizer`.

    The optimizer gets its saved states, such as momentum. If the saved optimizer was distributed,
    the new one has the same arguments, except ``compression``; otherwise it has the defaults. If
    the model was saved between the backward passes of a step, every rank gets the gradients that
    the saving rank had accumulated.

    :param filepath: as for ``keras.models.load_model``.
    :param custom_optimizers: classes of your own optimizers.
    :param custom_objects: a dict of other classes and functions of the model, by name.
    :param compression: as for :func:`DistributedOptimizer`.
    :param legacy_opts: ignored: Keras 3 has no legacy optimizers.
    :raises ValueError: the model was saved without an optimizer; or with a process set; or with
        several passes per step in a file that is not in Keras 3's format.
    """
    objects = {each.__name__: each for each in custom_optimizers or ()}
    model = keras.models.load_model(filepath, {**objects, **(custom_objects or {})})
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        raise ValueError(
            f"{filepath}: the file has no state of an optimizer: save a compiled model"
        )
    saved = _loadable(filepath, optimizer)
    settings = saved["settings"] if saved else {}
    if saved and not _inner(optimizer).built:
        # None, because DistributedOptimizer() below refuses a value and sets its own
        _inner(optimizer).gradient_accumulation_steps = None
    begun = int(_inner(optimizer)._iterations) % settings.get("backward_passes_per_step", 1)
    saver = saved.get("rank", 0) if saved else 0
    if begun and is_initialized() and rank() != saver:
        warnings.warn(
            f"{filepath}: rank {saver} has saved the model after pass {begun} of a step: rank "
            f"{rank()} goes on with rank {saver}'s gradients of these passes, and loses its own. "
            "Save the model after a step's last pass",
            stacklevel=2,
        )
    model.optimizer = DistributedOptimizer(optimizer, compression=compression, **settings)
    for i in saved["local"] if saved else ():
        optimizer.register_local_var(optimizer._trainable_variables[i])
    return model


def _loadable(filepath, optimizer) -> Optional[Dict[str, Any]]:
    """Return the result of :func:`_saved_with`; raise ValueError if it can't be restored."""
    saved = _saved_with(filepath)
    if saved is None and _inner(optimizer).gradient_accumulation_steps:
        raise ValueError(
            f"{filepath}: the optimizer adds up the gradients of several passes, and this file "
            "does not say whether the optimizer applies their sum or their mean: save the model as "
            "a .keras file, which says so"
        )
    if saved and saved["ranks"] is not None:
        raise ValueError(
            f"{filepath}: the saved optimizer averaged over a process set, ranks {saved['ranks']}: "
            "load the file with keras.models.load_model(), then call hvd.DistributedOptimizer("
            "model.optimizer, process_set=...) with the same other arguments as before"
        )
    return saved


def _saved_with(filepath) -> Optional[Dict[str, Any]]:
    """Return what ``save_assets`` saved; {} for a plain optimizer; None if the file can't tell."""
    inside = f"assets/optimizer/{FILE}"
    if os.path.isdir(filepath):
        file = Path(filepath, inside)
        return json.loads(file.read_text()) if file.exists() else {}
    if not zipfile.is_zipfile(filepath):
        return None
    with zipfile.ZipFile(filepath) as archive:
        return json.loads(archive.read(inside)) if inside in archive.namelist() else {}
