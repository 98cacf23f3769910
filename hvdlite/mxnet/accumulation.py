"""Gradients of several backward passes, added up on this rank before they are reduced."""

from typing import Any, Dict, Hashable


class Aside:
    """Keeps the gradients of earlier passes while backward writes those of the next ones."""

    def __init__(self) -> None:
        self._kept: Dict[Hashable, Any] = {}

    def put(self, key: Hashable, grad, grad_req: str) -> None:
        """Add the gradient to what is kept; where backward adds to it, it is cleared."""
        kept = self._kept.get(key)
        self._kept[key] = grad.copy() if kept is None else kept + grad
        if grad_req == "add":
            grad[:] = 0

    def bring_back(self, key: Hashable, grad, is_new: bool = True) -> bool:
        """Add what is kept to the gradient, or replace it if it is not new; False: nothing is."""
        kept = self._kept.pop(key, None)
        if kept is None:
            return False
        (grad + kept if is_new else kept).copyto(grad)
        return True
