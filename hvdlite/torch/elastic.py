"""TorchState: models and optimizers in the state of elastic training (:mod:`hvdlite.elastic`)."""

import torch

from hvdlite.elastic.loop import run
from hvdlite.elastic.parts import Part, StateDict
from hvdlite.elastic.sampler import ElasticSampler
from hvdlite.elastic.state import ObjectState, State
from hvdlite.torch.optimizer import DistributedOptimizer

__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "run"]


class TorchState(ObjectState):
    """A state with models and optimizers, beside the values that ``ObjectState`` takes.

    ::

        state = hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0)

    Of a module it keeps what its ``state_dict()`` has, of an optimizer the states and options.
    ``sync`` makes them equal on all ranks, so ``hvd.broadcast_parameters`` is not needed. Gradients
    are not kept: training goes on from a commit without any.

    :param model: a ``torch.nn.Module``; None: there is none of this name.
    :param optimizer: a ``torch.optim.Optimizer``, usually an ``hvd.DistributedOptimizer``.
    :param values: more of them, and any others; the same names on every rank.
    """

    def __init__(self, model=None, optimizer=None, **values) -> None:
        named = {"model": model, "optimizer": optimizer}
        given = {name: value for name, value in named.items() if value is not None}
        super().__init__(**given, **values)

    def _part(self, value) -> Part:
        if isinstance(value, torch.nn.Module):
            return _Module()
        if isinstance(value, torch.optim.Optimizer):
            return _Optimizer()
        return super()._part(value)


class _Module(StateDict):
    """A module, whose ``reset``, if it has one, is about something else."""

    def reset(self, value) -> None:
        """Do nothing."""


class _Optimizer(StateDict):
    """An optimizer, without the gradients of a step that no rank has ended."""

    def reset(self, value) -> None:
        value.zero_grad(set_to_none=True)
        if isinstance(value, DistributedOptimizer):
            value.begin_anew()
