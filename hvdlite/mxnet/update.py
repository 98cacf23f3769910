"""Updates weights that the ranks of a host share, with the C library or MXNet's operators."""

import math
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np

from hvdlite.core import topology
from hvdlite.core.names import tensor_name
from hvdlite.core.native import ffi, lib
from hvdlite.core.reduce_ops import Max
from hvdlite.mxnet.gradients import Gradients
from hvdlite.mxnet.host_weights import HostWeight, HostWeights, arrays_of
from hvdlite.mxnet.push import IS_MXNET_1, Holding, Settings, describe_holding


class Rule(NamedTuple):
    """An update rule of the C library.

    :ivar number: lib.HVD_SGD, lib.HVD_ADAM, ...
    :ivar rates: the rates that all parameters share. Learning rate and weight decay are 0 here,
        because :func:`rates_of` returns them for each parameter.
    """

    number: int
    rates: List[float]


def rule_of(optimizer) -> Optional[Rule]:
    """Return the optimizer's rule with its current settings; None if the C library has no rule."""
    # MXNet 2's optimizers compute in another way than the C library.
    kind = type(optimizer) if IS_MXNET_1 else None
    if kind is mx.optimizer.Adam:
        rates = _rates(optimizer, optimizer.beta1, optimizer.beta2, optimizer.epsilon)
        return Rule(lib.HVD_ADAM, rates)
    if kind is mx.optimizer.SGD and optimizer.momentum >= 0:
        number = lib.HVD_SGD_MOMENTUM if optimizer.momentum else lib.HVD_SGD
        return Rule(number, _rates(optimizer, optimizer.momentum))
    # Without momentum MXNet uses another operator, which the C library does not implement.
    if kind is mx.optimizer.NAG and optimizer.momentum > 0:
        return Rule(lib.HVD_NAG, _rates(optimizer, optimizer.momentum))
    return None


def rates_of(optimizer, indices: Sequence[Any]) -> np.ndarray:
    """Increment each parameter's update count; return learning rates and weight decays."""
    indices = list(indices)
    optimizer._update_count(indices)
    rates = np.array([optimizer._get_lrs(indices), optimizer._get_wds(indices)])
    if isinstance(optimizer, mx.optimizer.Adam):
        rates[0] = [_adam(optimizer, index, rate) for index, rate in zip(indices, rates[0])]
    return rates


def _adam(optimizer, index, rate: float) -> float:
    """Return Adam's learning rate with the correction for the bias of the first steps."""
    count = optimizer._index_update_count[index]
    return rate * (math.sqrt(1.0 - optimizer.beta2**count) / (1.0 - optimizer.beta1**count))


def _rates(optimizer, momentum: float, beta2: float = 0.0, epsilon: float = 0.0) -> List[float]:
    rates = [0.0] * lib.HVD_RATES
    rates[lib.HVD_RESCALE] = optimizer.rescale_grad
    rates[lib.HVD_CLIP] = optimizer.clip_gradient or -1.0
    rates[lib.HVD_MOMENTUM], rates[lib.HVD_BETA2] = momentum, beta2
    rates[lib.HVD_EPSILON] = epsilon
    return rates


class ByRule:
    """Sums the gradients of one set of parameters and updates the weights, with a C rule."""

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
            _fill(self._updates[number], rule, weights.by_index[index])
        self._operations = [
            self._operation(weights, gradients, reduction, {i: grads[i] for i in group}, at)
            for group in gradients.groups(grads)
        ]

    def _operation(self, weights, gradients, reduction, grads, at) -> Holding:
        op, (prescale, postscale) = reduction
        front = -min(at[i] for i in grads)
        settings = Settings(op, prescale, postscale, front, 0, gradients.states)
        described = [
            describe_holding(
                tensor_name("update", gradients.known_as(i)), settings, self._updates + at[i]
            )
            for i in grads
        ]
        held: List[Tuple[Any, Any, int]] = []
        for work, index in enumerate(grads):
            host_weight = weights.by_index[index]
            held.append((host_weight.weight, weights.view(), work))
            held += [(state, None, work) for state in arrays_of(host_weight.states)]
        return Holding(described, list(grads.values()), held)

    def is_for(self, rule: int, grads) -> bool:
        same = self._grads == {index: handle_of(grad) for index, grad in grads.items()}
        return same and self._rule == rule

    def push(self, rule: Rule, rates: np.ndarray) -> None:
        self._rates[:] = rule.rates
        self._rates[:, lib.HVD_LEARNING_RATE], self._rates[:, lib.HVD_WEIGHT_DECAY] = rates
        for operation in self._operations:
            operation.push()


def _fill(update, rule: int, host_weight: HostWeight) -> None:
    weights, *states = [ffi.cast("float *", array.ctypes.data) for array in host_weight.arrays]
    update.rule, update.weights = rule, weights
    if host_weight.stripes:
        update.dealt, update.first = True, host_weight.stripes.first
    for number, state in enumerate(states):
        update.states[number] = state


def handle_of(array) -> int:
    """Return MXNet's handle of the NDArray, a pointer as an int."""
    return array.handle.value


# Optimizers that compute each element of a weight only from elements with the same index, so that
# ranks can update disjoint slices of one weight.
_BY_ELEMENT = {
    "SGD", "ccSGD", "NAG", "Signum", "SignSGD", "FTML", "Adam", "AdaGrad", "RMSProp", "AdaDelta",
    "Ftrl", "Adamax", "DCASGD",
}  # fmt: skip


class ByParts:
    """Updates this rank's part of each weight with MXNet's operators, between two barriers."""

    def __init__(self, weights: HostWeights, gradients: Gradients) -> None:
        self._weights, self._gradients = weights, gradients
        self._updater = mx.optimizer.Updater(mx.optimizer.SGD())
        self._slices: Dict[int, tuple] = {}
        self._barriers: Dict[tuple, Tuple[Holding, Holding]] = {}

    def update(self, optimizer, indices: List[int], grads: List) -> None:
        key = tuple(indices)
        if key not in self._barriers:
            before, after = self.barriers(self._gradients.owner)
            self._barriers[key] = self._barrier(key, before, True), self._barrier(key, after, False)
        ready, done = self._barriers[key]
        ready.push()  # a barrier: from here on no rank reads the old weights
        mine = self._mine(optimizer, indices)
        work = [(i, *self._slice(i, grad, mine[i])) for i, grad in zip(indices, grads) if i in mine]
        optimizer._update_count([index for index in indices if index not in mine])
        if work:
            self._updater.optimizer = optimizer
            self._updater.aggregate_updates = optimizer.aggregate_num > 0
            self._updater(*map(list, zip(*work)))
        done.push()  # a barrier: all ranks have written their parts

    def _mine(self, optimizer, indices: List[int]) -> Dict[int, slice]:
        """Return, by index, the slice of each flattened weight that this rank updates."""
        sizes = {index: self._weights.by_index[index].shared.size for index in indices}
        n, self_ = topology.local_size(), topology.local_rank()
        if type(optimizer).__name__ in _BY_ELEMENT:
            cuts = {i: (size * self_ // n, size * (self_ + 1) // n) for i, size in sizes.items()}
            return {i: slice(a, b) for i, (a, b) in cuts.items() if a < b}
        dealt = _deal(sizes, n)
        return {i: slice(0, size) for i, size in sizes.items() if dealt[i] == self_}

    def _slice(self, index: int, grad, part: slice) -> tuple:
        """Return the slices of the gradient and the weight; give the updater the states' slices."""
        known = self._slices.get(index)
        if known is None or known[0] != (handle_of(grad), part.start, part.stop):
            host_weight = self._weights.by_index[index]
            self._updater.states[index] = _cut(host_weight.states, part, host_weight.shared)
            self._updater.states_synced[index] = True
            cut = _cut(grad.as_nd_ndarray(), part), _cut(host_weight.shared, part)
            known = self._slices[index] = ((handle_of(grad), part.start, part.stop), cut)
        return known[1]

    @staticmethod
    def barriers(owner: str) -> List[str]:
        """Return the names of the barriers before and after an update."""
        return [tensor_name("update", f"{owner}.{what}") for what in ("ready", "done")]

    def _barrier(self, indices: tuple, name: str, settles: bool) -> Holding:
        settle = self._weights.view() if settles else None
        held: List[Tuple[Any, Any, int]] = []
        for index in indices:
            host_weight = self._weights.by_index[index]
            held += [(host_weight.weight, settle, 0), (host_weight.shared, None, 0)]
            held += [(state, None, 0) for state in arrays_of(host_weight.states)]
        settings = Settings(Max, 1.0, 1.0, 0, 0)
        return Holding([describe_holding(name, settings)], [mx.nd.zeros((1,))], held)


def _deal(sizes: Dict[int, int], n: int) -> Dict[int, int]:
    """Assign each whole weight to the least loaded rank, the largest weights first."""
    loads, dealt = [0] * n, {}
    for index in sorted(sizes, key=lambda i: (-sizes[i], i)):
        rank = loads.index(min(loads))
        dealt[index] = rank
        loads[rank] += sizes[index]
    return dealt


def _cut(states, part: slice, whole=None):
    """Return the slice of flattened arrays; arrays of another size than ``whole`` stay whole."""
    if isinstance(states, mx.nd.NDArray):
        other = whole is not None and states.size != whole.size
        return states if other or part == slice(0, states.size) else states.reshape((-1,))[part]
    if isinstance(states, (list, tuple)):
        return type(states)(_cut(each, part, whole) for each in states)
    return states
