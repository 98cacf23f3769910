"""Combines the changes that the ranks' optimizer steps make to the weights, with Adasum."""

from typing import Dict, Sequence

import torch

from hvdlite.core.agreement import meet
from hvdlite.core.names import group_names
from hvdlite.core.process_set import ProcessSet
from hvdlite.core.reduce_ops import Adasum
from hvdlite.torch import exchange


class Deltas:
    """The parameters of one optimizer whose changes in a step Adasum combines."""

    written = due = False  # as in Gradients: no gradient waits to be averaged

    def __init__(self, name: str, named: Dict[torch.Tensor, str], process_set: ProcessSet) -> None:
        self.name, self.params, self.process_set = name, list(named), process_set
        self._met = -1
        self.loaded(0)

    def loaded(self, digest: int) -> None:
        """Make the next step check that all ranks have loaded states (digest not 0), or no rank.

        The states themselves may differ between ranks, because each rank takes its own step.
        """
        self._states = int(digest != 0)

    def adopt(self, named: Dict[torch.Tensor, str], _removed: Sequence[str]) -> None:
        """Also combine the changes of these parameters."""
        self.params.extend(named)

    def finish(self) -> None:
        """Do nothing, because each rank takes a step with its own gradients."""

    @torch.no_grad()
    def combine(self, before: Sequence[torch.Tensor]) -> None:
        """Combine the changes that each rank has made to the parameters. Collective.

        :param before: the values of the parameters before the changes.
        :raises hvdlite.HvdliteError: the allreduce failed; the parameters have the earlier values.
        """
        deltas = [param - old for param, old in zip(self.params, before)]
        for param, old in zip(self.params, before):
            param.copy_(old)
        self._met = meet(self.name, self._met, self.process_set)
        names = group_names(f"allreduce.{self.name}", deltas)
        states, scales = self._states, (1.0, 1.0)
        self.loaded(0)
        exchange.allreduce(
            names, deltas, Adasum, scales, self.process_set, in_place=True, states=states
        ).synchronize()
        for param, delta in zip(self.params, deltas):
            param.add_(delta)
