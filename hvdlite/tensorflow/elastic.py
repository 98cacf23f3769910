"""TensorFlowState and TensorFlowKerasState, which keep variables and models in elastic training."""

from typing import Any

import tensorflow as tf

from hvdlite.elastic.loop import run
from hvdlite.elastic.sampler import ElasticSampler
from hvdlite.elastic.state import ObjectState, Part, State
from hvdlite.keras.elastic import KerasState as TensorFlowKerasState

__all__ = [
    "ElasticSampler", "ObjectState", "State", "TensorFlowKerasState", "TensorFlowState", "run",
]  # fmt: skip


class TensorFlowState(ObjectState):
    """An ``ObjectState`` that also keeps TensorFlow variables.

    :param variables: in the same order on every rank; by default all global variables of the graph.
    :param session: the session of the graph; by default the current default session.
    :param values: other values, as for ``ObjectState``; the same names on every rank.
    """

    def __init__(self, variables=None, session=None, **values) -> None:
        self._own = list(variables or tf.compat.v1.global_variables())
        self._session = session or tf.compat.v1.get_default_session()
        super().__init__(variables=self._own, **values)

    def _part(self, value) -> Part:
        return _Variables(self._session) if value is self._own else super()._part(value)


class _Variables(Part):
    def __init__(self, session) -> None:
        self._session = session

    def save(self, value) -> Any:
        if self._session:
            return self._session.run(value)
        return [variable.numpy().copy() for variable in value]

    def restore(self, value, saved) -> Any:
        for variable, array in zip(value, saved):
            if self._session:
                variable.load(array, self._session)
            else:
                variable.assign(array)
        return value
