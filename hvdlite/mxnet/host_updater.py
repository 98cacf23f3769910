"""The updater of weights that exist once on each host: each rank updates its part of them."""

from typing import Any, Dict, List, Optional, Set, Tuple

import mxnet as mx
import numpy as np

from hvdlite import heap
from hvdlite._native import HvdliteValueError
from hvdlite.mxnet.gradients import Gradients
from hvdlite.mxnet.host_weights import HostWeights, Place, arrays_of, can_move, with_arrays
from hvdlite.mxnet.rules import rates_of, rule_of
from hvdlite.mxnet.update_by_parts import ByParts
from hvdlite.mxnet.update_by_rule import ByRule
from hvdlite.reduce_ops import Max

_REDUCED = Max, (1.0, 1.0)  # of gradients that are equal on all ranks: themselves

_UNSUITED = {"Nadam": "keeps a schedule that counts calls, of which each rank does some"}


class HostUpdater(mx.optimizer.Updater):
    """An ``mx.optimizer.Updater`` whose weights exist once on each host, from :meth:`share` on.

    ``states`` are those of one process: whole, on every rank. Where the C library has the
    optimizer's rule, it updates each rank's part in the pass that sums the gradients. Other
    optimizers run MXNet's operators on the rank's part: flat slices, or whole arrays where the
    optimizer may need them whole.
    """

    def __init__(self, optimizer) -> None:
        why = _UNSUITED.get(type(optimizer).__name__)
        if why:
            raise HvdliteValueError(
                f"{type(optimizer).__name__} {why}: use hvdlite.DistributedTrainer"
            )
        super().__init__(optimizer)
        self.sums = False  # the next call sums the gradients, which are not reduced yet
        self._weights = HostWeights(self._state_of)
        self._gradients: Optional[Gradients] = None
        self._single: Set[int] = set()  # those of float32
        self._fused: Dict[tuple, ByRule] = {}
        self._parts: Optional[ByParts] = None

    def share(self, params: Dict[int, Any], gradients: Gradients) -> None:
        """Move weights and states into memory of the host. Collective.

        :param params: initialised, in an order that all ranks share.
        :param gradients: names the parameters and says how their gradients are reduced.
        """
        self._gradients = gradients
        movable = {index: param for index, param in params.items() if can_move(param)}
        self._weights.move(movable, gradients.owner)
        mx.nd.waitall()  # MXNet has freed the private copies
        heap.trim()
        for index, place in self._weights.places.items():
            self.states[index], self.states_synced[index] = place.states, True
            if place.shared.dtype == np.float32:
                self._single.add(index)

    def unshare(self, params: Dict[int, Any]) -> None:
        """Give weights and states memory of this rank's own, until the next :meth:`share`."""
        for index, place in self._weights.places.items():
            if self.states.get(index) is place.states:
                own = [array.copy() for array in arrays_of(place.states)]
                self.states[index] = with_arrays(place.states, own)
        self._weights.leave(params)
        self._gradients, self._parts = None, None
        self._single.clear()
        self._fused.clear()

    def has(self, index: int) -> bool:
        """Tell whether the parameter exists once on each host."""
        return index in self._weights.places

    def fused(self) -> Set[int]:
        """Return the parameters whose gradients the next update can sum."""
        return self._single if rule_of(self.optimizer) else set()

    def __call__(self, index, grad, weight) -> None:
        """Update the weights of all ranks; arguments as for MXNet's updaters. Collective."""
        indices, grads, weights = _lists(index, grad, weight)
        places = [self._place_of(i, each) for i, each in zip(indices, weights)]
        by_rule = self.fused()
        private = [at for at, place in enumerate(places) if place is None]
        fused = [at for at, i in enumerate(indices) if i in by_rule]
        parted = sorted(set(range(len(indices))) - set(private) - set(fused))
        if fused:
            self._update_fused([indices[at] for at in fused], [grads[at] for at in fused])
        if parted:
            self._update_parts([indices[at] for at in parted], [grads[at] for at in parted])
        if private:
            super().__call__(*([each[at] for at in private] for each in (indices, grads, weights)))

    def _state_of(self, index: int, weight):
        if index in self.states:  # loaded before the first step
            return self.states[index]
        return self.optimizer.create_state_multi_precision(index, weight)

    def _place_of(self, index: int, weight) -> Optional[Place]:
        """Return where the parameter lies; give its place the states that were loaded since."""
        place = self._weights.places.get(index)
        if place is None:
            return None
        if not place.is_of(weight):
            raise HvdliteValueError(
                f"parameter {index} has been made anew (reset_ctx, cast or initialize) since the "
                "trainer's first step: make a new trainer"
            )
        if self.states.get(index) is not place.states:
            self._adopt(index, place)
        return place

    def _adopt(self, index: int, place: Place) -> None:
        """Copy states from elsewhere into the memory; every rank writes the same ones."""
        loaded, mine = arrays_of(self.states.get(index)), arrays_of(place.states)
        if [a.shape for a in loaded] != [a.shape for a in mine]:
            raise HvdliteValueError(
                f"the states of parameter {index} have other shapes than those of its optimizer: "
                "make a new trainer and load the states before its first step"
            )
        for source, target in zip(loaded, mine):
            source.astype(target.dtype, copy=False).copyto(target)
            target.wait_to_read()
        self.states[index], self.states_synced[index] = place.states, True

    def _update_fused(self, indices: List[int], grads: List) -> None:
        assert self._gradients is not None
        by_index = dict(zip(indices, grads))
        order = self._gradients.in_order(indices)
        key = (*order, self.sums)
        fused = self._fused.get(key)
        rule = rule_of(self.optimizer)
        assert rule is not None
        if fused is None or not fused.is_for(rule.number, by_index):
            reduction = self._gradients.reduction.of_arrays() if self.sums else _REDUCED
            self._fused[key] = fused = ByRule(
                rule.number, self._weights, self._gradients, reduction,
                {index: by_index[index] for index in order},
            )  # fmt: skip
        fused.push(rule, rates_of(self.optimizer, order))

    def _update_parts(self, indices: List[int], grads: List) -> None:
        assert self._gradients is not None
        if self._parts is None:
            self._parts = ByParts(self._weights, self._gradients)
        self._parts.update(self.optimizer, indices, grads)


def _lists(index, grad, weight) -> Tuple[list, list, list]:
    if isinstance(index, (list, tuple)):
        return list(index), list(grad), list(weight)
    return [index], [grad], [weight]
