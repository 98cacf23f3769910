"""Optimizers whose update the C library computes where it sums the gradients, with MXNet's bits."""

import math
from typing import Any, List, NamedTuple, Optional, Sequence

import mxnet as mx
import numpy as np

from hvdlite.core.native import lib
from hvdlite.mxnet.push import IS_MXNET_1


class Rule(NamedTuple):
    """An update rule of the C library.

    :ivar number: one of lib.HVD_SGD, ...
    :ivar rates: the rates that all parameters share; the learning rate and weight decay are 0.
    """

    number: int
    rates: List[float]


def rule_of(optimizer) -> Optional[Rule]:
    """Return the rule of the optimizer as it is now; None if the C library has none for it."""
    make = _RULES.get(type(optimizer))
    return None if make is None else make(optimizer)


def rates_of(optimizer, indices: Sequence[Any]) -> np.ndarray:
    """Count an update of each parameter; return their learning rates and weight decays."""
    indices = list(indices)
    optimizer._update_count(indices)
    rates = np.array([optimizer._get_lrs(indices), optimizer._get_wds(indices)])
    if isinstance(optimizer, mx.optimizer.Adam):
        rates[0] = [_adam(optimizer, index, rate) for index, rate in zip(indices, rates[0])]
    return rates


def _adam(optimizer, index, rate: float) -> float:
    """Correct the rate for the bias of Adam's first steps."""
    count = optimizer._index_update_count[index]
    return rate * (math.sqrt(1.0 - optimizer.beta2**count) / (1.0 - optimizer.beta1**count))


def _rates(optimizer, momentum: float, beta2: float = 0.0, epsilon: float = 0.0) -> List[float]:
    rates = [0.0] * lib.HVD_RATES
    rates[lib.HVD_RESCALE] = optimizer.rescale_grad
    rates[lib.HVD_CLIP] = optimizer.clip_gradient or -1.0
    rates[lib.HVD_MOMENTUM], rates[lib.HVD_BETA2] = momentum, beta2
    rates[lib.HVD_EPSILON] = epsilon
    return rates


def _sgd(optimizer) -> Optional[Rule]:
    if optimizer.momentum < 0:
        return None
    number = lib.HVD_SGD_MOMENTUM if optimizer.momentum else lib.HVD_SGD
    return Rule(number, _rates(optimizer, optimizer.momentum))


def _nag(optimizer) -> Optional[Rule]:
    if optimizer.momentum <= 0:  # another operator of MXNet's
        return None
    return Rule(lib.HVD_NAG, _rates(optimizer, optimizer.momentum))


def _adam_rule(optimizer) -> Rule:
    rates = _rates(optimizer, optimizer.beta1, optimizer.beta2, optimizer.epsilon)
    return Rule(lib.HVD_ADAM, rates)


_RULES = {
    mx.optimizer.SGD: _sgd,
    mx.optimizer.NAG: _nag,
    mx.optimizer.Adam: _adam_rule,
}
if not IS_MXNET_1:  # its optimizers compute otherwise
    _RULES.clear()
