"""Updates each rank's part of the weights by MXNet's operators."""

from typing import Any, Dict, List, Tuple

import mxnet as mx

from hvdlite.core import topology
from hvdlite.core.names import tensor_name
from hvdlite.core.reduce_ops import Max
from hvdlite.mxnet.gradients import Gradients
from hvdlite.mxnet.host_weights import HostWeights, arrays_of
from hvdlite.mxnet.push import Holding, Settings, describe_holding
from hvdlite.mxnet.update import handle_of

# Each value of a weight follows from the values at the same place: a part needs no other part.
_BY_ELEMENT = {
    "SGD", "ccSGD", "NAG", "Signum", "SignSGD", "FTML", "Adam", "AdaGrad", "RMSProp", "AdaDelta",
    "Ftrl", "Adamax", "DCASGD",
}  # fmt: skip


class ByParts:
    """Runs MXNet's operators on this rank's part of each weight, between two barriers."""

    def __init__(self, weights: HostWeights, gradients: Gradients) -> None:
        self._weights, self._gradients = weights, gradients
        self._updater = mx.optimizer.Updater(mx.optimizer.SGD())
        self._slices: Dict[int, tuple] = {}
        self._barriers: Dict[tuple, Tuple[Holding, Holding]] = {}

    def update(self, optimizer, indices: List[int], grads: List) -> None:
        ready, done = self._barriers_of(tuple(indices))
        ready.push()  # no rank reads the weights any more
        mine = self._mine(optimizer, indices)
        work = [(i, *self._slice(i, grad, mine[i])) for i, grad in zip(indices, grads) if i in mine]
        optimizer._update_count([index for index in indices if index not in mine])
        if work:
            self._updater.optimizer = optimizer
            self._updater.aggregate_updates = optimizer.aggregate_num > 0
            self._updater(*map(list, zip(*work)))
        done.push()  # no rank writes to the weights any more

    def _mine(self, optimizer, indices: List[int]) -> Dict[int, slice]:
        """Return this rank's parts of the flat weights of which it has one."""
        sizes = {index: self._weights.places[index].shared.size for index in indices}
        n, self_ = topology.local_size(), topology.local_rank()
        if type(optimizer).__name__ in _BY_ELEMENT:
            cuts = {i: (size * self_ // n, size * (self_ + 1) // n) for i, size in sizes.items()}
            return {i: slice(a, b) for i, (a, b) in cuts.items() if a < b}
        dealt = _deal(sizes, n)
        return {i: slice(0, size) for i, size in sizes.items() if dealt[i] == self_}

    def _slice(self, index: int, grad, part: slice) -> tuple:
        """Return the part's gradient and weight; give the updater its states."""
        known = self._slices.get(index)
        if known is None or known[0] != (handle_of(grad), part.start, part.stop):
            place = self._weights.places[index]
            self._updater.states[index] = _cut(place.states, part, place.shared)
            self._updater.states_synced[index] = True
            cut = _cut(grad.as_nd_ndarray(), part), _cut(place.shared, part)
            known = self._slices[index] = ((handle_of(grad), part.start, part.stop), cut)
        return known[1]

    def _barriers_of(self, indices: tuple) -> Tuple[Holding, Holding]:
        if indices not in self._barriers:
            self._barriers[indices] = (
                self._barrier(indices, "ready"),
                self._barrier(indices, "done"),
            )
        return self._barriers[indices]

    def _barrier(self, indices: tuple, what: str) -> Holding:
        name = tensor_name("update", f"{self._gradients.owner}.{what}")
        settle = self._weights.view() if what == "ready" else None
        held: List[Tuple[Any, Any, int]] = []
        for index in indices:
            place = self._weights.places[index]
            held += [(place.weight, settle, 0), (place.shared, None, 0)]
            held += [(state, None, 0) for state in arrays_of(place.states)]
        settings = Settings(Max, 1.0, 1.0, 0, 0)
        return Holding([describe_holding(name, settings)], [mx.nd.zeros((1,))], held)


def _deal(sizes: Dict[int, int], n: int) -> Dict[int, int]:
    """Deal whole weights to ranks, the largest first, each to the rank that has the least."""
    loads, dealt = [0] * n, {}
    for index in sorted(sizes, key=lambda i: (-sizes[i], i)):
        rank = loads.index(min(loads))
        dealt[index] = rank
        loads[rank] += sizes[index]
    return dealt


def _cut(states, part: slice, whole=None):
    """Cut a flat part out of an array; states of another size than the weight stay whole."""
    if isinstance(states, mx.nd.NDArray):
        if whole is not None and states.size != whole.size:
            return states
        if part == slice(0, states.size):
            return states
        return states.reshape((-1,))[part]
    if isinstance(states, (list, tuple)):
        return type(states)(_cut(each, part, whole) for each in states)
    return states
