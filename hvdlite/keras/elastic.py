"""KerasState keeps Keras models and optimizers in elastic training; callbacks commit the state."""

from typing import Any

import keras

from hvdlite.elastic.loop import run
from hvdlite.elastic.sampler import ElasticSampler
from hvdlite.elastic.state import ObjectState, Part, State
from hvdlite.keras.callbacks import synced

__all__ = [
    "CommitStateCallback", "ElasticSampler", "KerasState", "ObjectState", "State",
    "UpdateBatchStateCallback", "UpdateEpochStateCallback", "run",
]  # fmt: skip


class KerasState(ObjectState):
    """An ``ObjectState`` that also keeps a model and its optimizer.

    ::

        state = hvd.elastic.KerasState(model, epoch=0, batch=0)

    The state keeps the model's weights and the optimizer's variables. ``sync`` makes them equal on
    all ranks, so ``BroadcastGlobalVariablesCallback`` is not needed.

    :param model: a built model; also compiled, unless ``optimizer`` is given.
    :param optimizer: by default the model's optimizer.
    :param backend: ignored.
    :param values: other values, as for ``ObjectState``; the same names on every rank.
    :raises ValueError: the model is not built, or there is no optimizer.
    """

    def __init__(self, model, optimizer=None, backend=None, **values) -> None:
        optimizer = optimizer or model.optimizer
        if not model.built or optimizer is None:
            raise ValueError(
                "expected a built model with an optimizer, got a model that lacks one of the two: "
                "first call model.build(input_shape) and model.compile(optimizer, loss)"
            )
        if not optimizer.built:
            optimizer.build(model.trainable_variables)
        self._model = model
        super().__init__(model=model, optimizer=optimizer, **values)

    def _part(self, value) -> Part:
        if isinstance(value, keras.Model):
            return _Variables(lambda model: synced(model).weights)
        if isinstance(value, keras.optimizers.Optimizer):
            return _Variables(lambda optimizer: (synced(self._model), optimizer.variables)[1])
        return super()._part(value)


class _Variables(Part):
    """Saves and restores the variables that ``variables_of`` returns, in one order on all ranks."""

    def __init__(self, variables_of) -> None:
        self._variables_of = variables_of

    def save(self, value) -> Any:
        return [keras.ops.convert_to_numpy(each).copy() for each in self._variables_of(value)]

    def restore(self, value, saved) -> Any:
        for variable, array in zip(self._variables_of(value), saved):
            variable.assign(array)
        return value

    def reset(self, value) -> None:
        if hasattr(value, "_reducer"):
            value._reducer.forget()


class _OfState(keras.callbacks.Callback):
    def __init__(self, state) -> None:
        super().__init__()
        self.state = state


class CommitStateCallback(_OfState):
    """Commit the state every few batches and at the end of each epoch. Must be the last callback.

    :param state: a :class:`State`.
    :param batches_per_commit: the same on every rank.
    """

    def __init__(self, state, batches_per_commit: int = 1) -> None:
        super().__init__(state)
        self.batches_per_commit = batches_per_commit

    def on_train_begin(self, logs=None) -> None:
        self._batches = 0

    def on_train_batch_end(self, batch, logs=None) -> None:
        self._batches += 1
        if self._batches % self.batches_per_commit == 0:
            self.state.commit()

    def on_epoch_end(self, epoch, logs=None) -> None:
        self.state.commit()


class UpdateBatchStateCallback(_OfState):
    """Count finished batches in ``state.batch``, including batches before a change of ranks.

    ``fit`` does not read ``state.batch``: after a change of ranks give ``fit`` the remaining rows.
    """

    def on_train_begin(self, logs=None) -> None:
        """Continue from the state's count, because Keras counts from 0 again."""
        self._first = self.state.batch

    def on_train_batch_end(self, batch, logs=None) -> None:
        self.state.batch = self._first + batch + 1

    def on_epoch_end(self, epoch, logs=None) -> None:
        self.state.batch = self._first = 0


class UpdateEpochStateCallback(_OfState):
    """Count finished epochs in ``state.epoch``, including epochs before a change of ranks."""

    def on_train_begin(self, logs=None) -> None:
        """Continue from the state's count, because Keras counts from 0 again."""
        self._first = self.state.epoch

    def on_epoch_end(self, epoch, logs=None) -> None:
        self.state.epoch = self._first + epoch + 1
