"""Finds the first update of a training step; keeps gradients of the step's earlier passes."""

import math
from typing import Any, Dict, Hashable


class Steps:
    """Finds the first update of each step: a step updates the parameters in order of index."""

    def __init__(self) -> None:
        self._last = math.inf

    def begins(self, first: int, last: int) -> bool:
        """Return True for a step's first update, which has the indices from first to last."""
        begins, self._last = first <= self._last, last
        return begins


class Aside:
    """Keeps the sum of the gradients of a step's earlier backward passes in arrays of its own."""

    def __init__(self) -> None:
        self._kept: Dict[Hashable, Any] = {}

    def put(self, key: Hashable, grad, grad_req: str) -> None:
        """Add the gradient to the kept sum; with grad_req "add" then set the gradient to zero."""
        kept = self._kept.get(key)
        self._kept[key] = grad.copy() if kept is None else kept + grad
        if grad_req == "add":
            grad[:] = 0

    def bring_back(self, key: Hashable, grad, is_new: bool = True) -> bool:
        """Write the kept sum to the gradient; if ``is_new``, add the gradient's value to the sum.

        Return False if nothing is kept for the key.
        """
        kept = self._kept.pop(key, None)
        if kept is None:
            return False
        (grad + kept if is_new else kept).copyto(grad)
        return True
