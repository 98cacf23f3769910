"""The tensors of a kvstore's keys: their names, and the order of arrays with the same name."""

from typing import Dict

import mxnet as mx

from hvdlite.core.agreement import meet
from hvdlite.mxnet.collectives import copy
from hvdlite.mxnet.ops import broadcast_
from hvdlite.mxnet.sparse import broadcast_rows, is_sparse


class KeyTensors:
    """Names and broadcasts the values of one store's keys; ``owner`` is the store's name."""

    def __init__(self, owner: str) -> None:
        self.owner, self._met = owner, -1
        self.labels: Dict[int, int] = {}  # key of a Trainer -> number, equal on all ranks
        self._last: Dict[str, mx.nd.NDArray] = {}  # the last array sent under each tensor name

    def meet(self) -> None:
        """Once in each job, raise on every rank unless all ranks use a store of this name."""
        self._met = meet(self.owner, self._met)

    def name(self, key) -> str:
        """Return the name of the key's tensor, equal on all ranks."""
        self.meet()
        number = isinstance(key, str) and key.isdigit()  # the keys "1" and 1 need different names
        return f"{self.owner}.{repr(key) if number else self.labels.get(key, key)}"

    def from_root(self, key, array, priority: int = 0, root_rank: int = 0):
        """Return a new array with rank ``root_rank``'s value of ``array``."""
        if is_sparse(array):
            return broadcast_rows(array, root_rank, f"{self.name(key)}.broadcast")
        kept = copy(array.as_nd_ndarray())
        self.broadcast(key, kept, priority, root_rank)
        return kept

    def broadcast(self, key, array, priority: int, root_rank: int = 0) -> None:
        """Overwrite a dense array with rank ``root_rank``'s array."""
        self.wait_for_broadcast(key, array)
        broadcast_(array, root_rank, self.name(key), priority)

    def wait_for_broadcast(self, key, array=None) -> None:
        """Wait for the last array of the key's broadcast, as :meth:`wait_for_other` does."""
        self.wait_for_other(f"broadcast.{self.name(key)}", array)

    def wait_for_other(self, name: str, array) -> None:
        """Wait for the last array that was sent under this name, unless ``array`` is this array.

        :param array: the array to send next, or None. MXNet orders operations on one array itself.
        """
        last = self._last.pop(name, None)
        if last is not None and last is not array:
            last.wait_to_read()
        if array is not None:
            self._last[name] = array
