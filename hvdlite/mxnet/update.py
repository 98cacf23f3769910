"""Sums gradients and updates weights in one pass, by a rule of the C library."""

from typing import Any, List, Tuple

import numpy as np

from hvdlite.core.names import tensor_name
from hvdlite.core.native import ffi, lib
from hvdlite.mxnet.gradients import Gradients
from hvdlite.mxnet.host_weights import HostWeights, Place, arrays_of
from hvdlite.mxnet.push import Holding, Settings, describe_holding
from hvdlite.mxnet.rules import Rule


class ByRule:
    """Operations that sum gradients and update weights by a rule, for one set of parameters."""

    def __init__(self, rule: int, weights: HostWeights, gradients: Gradients, reduction, grads):
        self._rule, self._grads = rule, {index: handle_of(grad) for index, grad in grads.items()}
        self._alive = list(grads.values())
        self._updates = ffi.new("hvd_update[]", len(grads))
        update_type = np.dtype((np.void, ffi.sizeof("hvd_update")))
        whole = np.frombuffer(ffi.buffer(self._updates), update_type).view(np.uint8)
        start = ffi.offsetof("hvd_update", "rates")
        rows = whole.reshape(len(grads), -1)[:, start : start + 4 * lib.HVD_RATES]
        self._rates = rows.view(np.float32)
        at = {index: number for number, index in enumerate(grads)}
        for index, number in at.items():
            _fill(self._updates[number], rule, weights.places[index])
        self._operations = [
            self._operation(weights, gradients, reduction, {i: grads[i] for i in group}, at)
            for group in gradients.groups(grads)
        ]

    def _operation(self, weights, gradients, reduction, grads, at) -> Holding:
        op, (prescale, postscale) = reduction
        settings = Settings(op, prescale, postscale, -min(at[i] for i in grads), 0)
        described = [
            describe_holding(
                tensor_name("update", gradients.name(i)), settings, self._updates + at[i]
            )
            for i in grads
        ]
        held: List[Tuple[Any, Any, int]] = []
        for work, index in enumerate(grads):
            place = weights.places[index]
            held.append((place.weight, weights.view(), work))
            held += [(state, None, work) for state in arrays_of(place.states)]
        return Holding(described, list(grads.values()), held)

    def is_for(self, rule: int, grads) -> bool:
        same = self._grads == {index: handle_of(grad) for index, grad in grads.items()}
        return same and self._rule == rule

    def push(self, rule: Rule, rates: np.ndarray) -> None:
        self._rates[:] = rule.rates
        self._rates[:, lib.HVD_LEARNING_RATE], self._rates[:, lib.HVD_WEIGHT_DECAY] = rates
        for operation in self._operations:
            operation.push()


def _fill(update, rule: int, place: Place) -> None:
    weights, *states = [ffi.cast("float *", array.ctypes.data) for array in place.arrays]
    update.rule, update.weights = rule, weights
    if place.stripes:
        update.dealt, update.first = True, place.stripes.first
    for number, state in enumerate(states):
        update.states[number] = state


def handle_of(array) -> int:
    """Return the NDArray's handle, by which MXNet knows it."""
    return array.handle.value
