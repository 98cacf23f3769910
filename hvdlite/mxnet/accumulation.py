"""Gradients of several backward passes, added up on this rank before they are reduced."""

from typing import Any, Dict, Hashable


class Aside:
    """Keeps the sum of the gradients of earlier passes while backward writes the next ones."""

    def __init__(self) -> None:
        self._kept: Dict[Hashable, Any] = {}

    def put(self, key: Hashable, grad, grad_req: str) -> None:
        """Add the gradient to the kept sum; clear it if backward adds (grad_req "add")."""
        kept = self._kept.get(key)
        self._kept[key] = grad.copy() if kept is None else kept + grad
        if grad_req == "add":
            grad[:] = 0

    def bring_back(self, key: Hashable, grad, is_new: bool = True) -> bool:
        """Write the kept sum, plus the gradient if it is new, to the gradient.

        Return False if nothing is kept for the key.
        """
        kept = self._kept.pop(key, None)
        if kept is None:
            return False
        (grad + kept if is_new else kept).copyto(grad)
        return True
