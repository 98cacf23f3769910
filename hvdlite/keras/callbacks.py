"""Callbacks for ``model.fit`` with Horovod's names: initial weights, metrics, learning rates."""

from typing import Any, Callable, Optional, Union

import keras
import numpy as np

from hvdlite import numpy as collectives
from hvdlite.core import topology
from hvdlite.core.reduce_ops import Min
from hvdlite.keras.ops import broadcast_variables
from hvdlite.monitor import counts


def synced(model):
    """Return the model with its current variables: on JAX, ``fit`` trains copies of variables."""
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()
    return model


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """At the start of training, give all ranks the model's and optimizer's variables of one rank.

    :param root_rank: the rank whose variables all ranks get; it may have loaded a checkpoint.
    :param device: ignored.
    :param local_variables: variables that are not broadcast.
    """

    def __init__(self, root_rank: int = 0, device: str = "", local_variables=None) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.broadcast_done = False
        self._local = {id(variable) for variable in local_variables or ()}

    def register_local_var(self, var) -> None:
        """Exclude a variable from the broadcast."""
        self._local.add(id(var))

    def on_train_begin(self, logs=None) -> None:
        """Broadcast the variables if all ranks have them; if not, wait for the first batch, because
        a rank that loads no model has no variables before this batch."""
        built = np.array([self.model.built])
        if collectives.allreduce(built, "model.built", op=Min)[0]:
            self._broadcast()

    def on_train_batch_end(self, batch, logs=None) -> None:
        """Broadcast after the first batch, which builds the model, unless this was done before."""
        self._broadcast()

    def _broadcast(self) -> None:
        if self.broadcast_done:
            return
        model = synced(self.model)
        if not model.optimizer.built:  # build it, so that all ranks broadcast the same variables
            model.optimizer.build(model.trainable_variables)
        variables = [*model.variables, *model.optimizer.variables]
        known = {id(each): each for each in variables if id(each) not in self._local}
        broadcast_variables(list(known.values()), self.root_rank)
        self.broadcast_done = True


class MetricAverageCallback(keras.callbacks.Callback):
    """Average an epoch's metrics over ranks, for later callbacks in the list and for the history.

    The result is the mean of the ranks' means: exact if all ranks have the same number of samples.

    :param device: ignored.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()

    def on_epoch_end(self, epoch, logs=None) -> None:
        """Replace the values in ``logs``, with one allreduce for all."""
        names = sorted(name for name in logs or {} if np.ndim(logs[name]) == 0)
        if names:
            values = np.array([float(logs[name]) for name in names])
            logs.update(zip(names, collectives.allreduce(values, "metrics").tolist()))


class StatsCallback(keras.callbacks.Callback):
    """Add the values of ``hvd.stats(steps=True)`` to an epoch's logs; each name begins with "hvd/".

    The history and later callbacks in the list, such as ``TensorBoard``, get the values.
    """

    def on_epoch_end(self, epoch, logs=None) -> None:
        if logs is not None:
            stats = counts.stats(steps=True)
            logs.update({f"hvd/{name}": float(value) for name, value in stats.items()})


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Set the learning rate to ``initial_lr * multiplier(epoch)``.

    :param initial_lr: the learning rate to multiply.
    :param multiplier: a function of the epoch; a number m means ``m ** (epoch - start_epoch)``.
    :param start_epoch: the first epoch of this schedule, which ends before ``end_epoch``.
    :param staircase: True: set the rate once per epoch. False: set the rate at each batch;
        ``multiplier`` gets the epoch plus the finished fraction of the epoch.
    :param momentum_correction: when the rate changes, scale the optimizer's momentum buffer by the
        same factor (Goyal et al., "Accurate, large minibatch SGD", 2017, remark 2).
    :param steps_per_epoch: one rank's number of batches in an epoch; by default as in ``fit``.
    :raises ValueError: ``initial_lr`` is None, or the number of steps is needed and not known.
    """

    def __init__(
        self, initial_lr: float, multiplier: Union[float, Callable[[float], float]],
        start_epoch: int = 0, end_epoch: Optional[int] = None, staircase: bool = True,
        momentum_correction: bool = True, steps_per_epoch: Optional[int] = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if initial_lr is None:
            raise ValueError("initial_lr is None: expected a learning rate")
        self.initial_lr = initial_lr
        self.multiplier: Any = multiplier
        if not callable(multiplier):
            self.multiplier = lambda epoch: multiplier ** (epoch - start_epoch)
        self.start_epoch, self.staircase = start_epoch, staircase
        self.end_epoch: Any = end_epoch
        self.momentum_correction = momentum_correction
        self.steps_per_epoch: Any = steps_per_epoch
        self._epoch = 0

    def on_train_begin(self, logs=None) -> None:
        self.steps_per_epoch = self.steps_per_epoch or self.params.get("steps")
        if not self.staircase and not self.steps_per_epoch:
            raise ValueError(
                f"{type(self).__name__}: fit() does not know how many steps an epoch has: pass "
                f"steps_per_epoch to {type(self).__name__}"
            )

    def on_epoch_begin(self, epoch, logs=None) -> None:
        self._epoch = epoch

    def on_train_batch_begin(self, batch, logs=None) -> None:
        end = float("inf") if self.end_epoch is None else self.end_epoch
        if self.start_epoch <= self._epoch < end and (batch == 0 or not self.staircase):
            part = 0 if self.staircase else batch / self.steps_per_epoch
            self._set(self.initial_lr * self.multiplier(self._epoch + part))

    def on_epoch_end(self, epoch, logs=None) -> None:
        """Write the learning rate to ``logs["lr"]``."""
        if logs is not None:
            logs["lr"] = self._rate()

    def _rate(self) -> float:
        return float(keras.ops.convert_to_numpy(synced(self.model).optimizer.learning_rate))

    def _set(self, rate: float) -> None:
        old, optimizer = self._rate(), self.model.optimizer
        optimizer.learning_rate = rate
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        corrects = self.momentum_correction and getattr(optimizer, "momentum", False)
        if corrects and old and rate != old:
            # SGD has `momentums`, RMSprop has `_momentums`.
            gathered: Any = getattr(optimizer, "momentums", None)
            for variable in gathered or getattr(optimizer, "_momentums", ()):
                variable.assign(variable * (rate / old))


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raise the learning rate at each batch, from ``initial_lr / size`` to ``initial_lr``.

    :param initial_lr: the rate after the warm-up: usually the rate of one process times the size.
    :param warmup_epochs: the number of epochs of the warm-up.
    :param momentum_correction: as for LearningRateScheduleCallback, like ``steps_per_epoch``.
    :param verbose: 1: rank 0 prints a line at the end of the warm-up.
    """

    def __init__(
        self, initial_lr: float, warmup_epochs: int = 5, momentum_correction: bool = True,
        steps_per_epoch: Optional[int] = None, verbose: int = 0,
    ) -> None:  # fmt: skip
        def multiplier(epoch: float) -> float:
            # Count the current batch as finished, so that the last batch gets the final rate.
            epoch += 1 / self.steps_per_epoch
            return (epoch * (topology.size() - 1) / warmup_epochs + 1) / topology.size()

        super().__init__(
            initial_lr, multiplier, 0, warmup_epochs, False, momentum_correction, steps_per_epoch
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch, logs=None) -> None:
        """Write the rate to ``logs``; after the last epoch of the warm-up print a line."""
        super().on_epoch_end(epoch, logs)
        if epoch == self.end_epoch - 1 and self.verbose and topology.rank() == 0:
            print(f"\nEpoch {epoch + 1}: the learning rate has risen to {self._rate():g}.")
