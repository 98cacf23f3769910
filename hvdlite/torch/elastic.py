"""TorchState: models and optimizers in the state of elastic training (:mod:`hvdlite.elastic`)."""

import copy
from typing import Any

import torch

from hvdlite.elastic.loop import run
from hvdlite.elastic.sampler import ElasticSampler
from hvdlite.elastic.state import ObjectState, Part, State, StateDict
from hvdlite.torch.gradients import Gradients
from hvdlite.torch.optimizer import DistributedOptimizer
from hvdlite.torch.states import plain_states

__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "run"]


class TorchState(ObjectState):
    """A state with models and optimizers, in addition to the values that ``ObjectState`` takes.

    ::

        state = hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0)

    The state stores a module's ``state_dict()``, and an optimizer's states and options, but no
    gradients. ``sync`` makes them equal on all ranks, so ``hvd.broadcast_parameters`` is not
    needed.

    :param model: a ``torch.nn.Module``, or None.
    :param optimizer: a ``torch.optim.Optimizer``, usually an ``hvd.DistributedOptimizer``.
    :param values: more modules, optimizers, or any other values; the same names on every rank.
    """

    def __init__(self, model=None, optimizer=None, **values) -> None:
        named = {"model": model, "optimizer": optimizer}
        parts = {name: value for name, value in named.items() if value is not None}
        super().__init__(**parts, **values)

    def _part(self, value) -> Part:
        if isinstance(value, torch.nn.Module):
            return _Module()
        if isinstance(value, torch.optim.Optimizer):
            return _Optimizer()
        return super()._part(value)


class _Module(StateDict):
    """Saves and restores a module."""

    def reset(self, value) -> None:
        """Do nothing: a module's own method ``reset``, if any, serves another purpose."""


class _Optimizer(StateDict):
    """Saves and restores an optimizer. ``reset`` drops the gradients of an unfinished step."""

    def save(self, value) -> Any:
        return copy.deepcopy(plain_states(value).state_dict())

    def restore(self, value, saved) -> Any:
        plain_states(value).load_state_dict(copy.deepcopy(saved))
        return value

    def _gradients(self, value) -> Any:
        gradients = getattr(value, "_gradients", None)
        return gradients if isinstance(gradients, Gradients) else None

    def reset(self, value) -> None:
        value.zero_grad(set_to_none=True)
        if isinstance(value, DistributedOptimizer):
            value.begin_anew()
