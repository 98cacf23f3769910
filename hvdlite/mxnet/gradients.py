"""Names and averages the gradients of one trainer or optimizer across ranks."""

from typing import Any, Dict, Iterable, List, Sequence

import mxnet as mx
import numpy as np

from hvdlite.core.names import natural_order, shape_of_name
from hvdlite.core.objects import agree
from hvdlite.core.process_set import ProcessSet
from hvdlite.mxnet.reducer import Reducer
from hvdlite.mxnet.sparse import allreduce_rows, is_sparse
from hvdlite.training.plan import Reduction, split, split_by_bytes


def common_order(params: Dict[int, Any]) -> List[int]:
    """Return the indices of parameters in an order that is the same on every rank.

    Natural order of the names, because Gluon's names count the blocks of each process. MXNet 2
    names a parameter within its block only, so names repeat; its trainer's order is already equal.
    """
    indices = sorted(params)
    names = [params[i].name for i in indices]
    if len(set(names)) < len(names):
        return indices
    return [indices[i] for i in natural_order(names)]


def _facts(param) -> str:
    kind = param._grad_stype
    sparse = "" if kind == "default" else f", {kind} gradient"
    return f"({param.dtype}, {param.shape}, grad_req {param.grad_req}{sparse})"


def agree_on_order(
    owner: str, params: Dict[int, Any], labels: Dict[int, int], process_set: ProcessSet
) -> None:
    """Raise unless all ranks have the same order of sparse gradients, which block one by one."""
    sparse = [i for i in sorted(params) if params[i]._grad_stype != "default"]
    if len(sparse) > 1:
        agree(
            f"{owner}, order of row_sparse gradients",
            [str(labels[i]) for i in sparse],
            [params[i].name for i in sparse],
            process_set,
        )


class Gradients:
    """Averages gradients over ranks, in place, under names that are the same on every rank.

    A gradient is a list of arrays, one for each context of the parameter. The arrays are summed
    first, and each gets the result. A rank outside of the process set is alone: it sends nothing.

    :param owner: the trainer's or optimizer's name, by ``names.owner_name``.
    """

    def __init__(self, owner: str, reduction: Reduction) -> None:
        self.owner = owner
        self.reduction = reduction
        self.alone = not reduction.process_set.included()
        self._reducer = Reducer(reduction.compression)
        self._labels: Dict[int, int] = {}
        self._names: Dict[int, str] = {}
        self._sizes: Dict[int, int] = {}

    def pair(self, params: Dict[int, Any]) -> bool:
        """Pair parameters, by index, with those of the other ranks. Collective.

        Raises unless all ranks have the same layers. Later calls do nothing and return False.
        """
        if self._labels or self.alone:
            return False
        order = common_order(params)
        facts = [_facts(params[i]) for i in order]
        names = [params[i].name for i in order]
        agree(
            self.owner,
            [f"{shape_of_name(name)} {fact}" for name, fact in zip(names, facts)],
            [f"{name} {fact}" for name, fact in zip(names, facts)],
            self.reduction.process_set,
        )
        self._labels = {index: label for label, index in enumerate(order)}
        self._forget()
        agree_on_order(self.owner, params, self._labels, self.reduction.process_set)
        return True

    def restart(self, owner: str) -> None:
        """Forget all pairs and begin again under this name, the same on every rank."""
        self.owner, self._labels = owner, {}
        self.alone = not self.reduction.process_set.included()
        self._reducer = Reducer(self.reduction.compression)
        self._forget()

    def _forget(self) -> None:
        self._names.clear()
        self._sizes.clear()

    def in_order(self, indices: Iterable[int]) -> List[int]:
        """Return the indices of paired parameters in an order that all ranks share."""
        return sorted(indices, key=lambda index: self._labels.get(index, index))

    def average(self, grads: Dict[int, Sequence]) -> None:
        """Average each gradient over all ranks; front layers go first, as forward needs them first.

        Submits all dense gradients, then waits for the sparse ones.
        """
        indices = self.in_order(grads) if self._labels else list(grads)
        sparse = [index for index in indices if is_sparse(grads[index][0])]
        self._average_dense({i: grads[i] for i in indices if i not in sparse})
        for index in sparse:
            self._average_sparse(index, grads[index])

    def _average_dense(self, grads: Dict[int, Sequence]) -> None:
        for first, *others in grads.values():
            for other in others:
                first += other.as_in_context(first.context)
        firsts = {index: arrays[0] for index, arrays in grads.items()}
        for group in self.groups(firsts):
            self._reduce(group, [firsts[index] for index in group])
        for first, *others in grads.values():
            for other in others:
                first.copyto(other)

    def _average_sparse(self, index: int, arrays: Sequence) -> None:
        if self.reduction.sparse_as_dense:
            total = mx.nd.add_n(*(array.tostype("default") for array in arrays))
            self._reduce([index], [total])
            total = total.tostype("row_sparse")
        elif self.alone:
            total = mx.nd.add_n(*arrays)
        else:
            op, scales = self.reduction.of_arrays()
            total = allreduce_rows(arrays, self.name(index), op, self.reduction.process_set)
            if scales[0] * scales[1] != 1:
                total = total * (scales[0] * scales[1])
        for array in arrays:
            total.copyto(array)

    def _reduce(self, indices: Sequence[int], grads: Sequence) -> None:
        if self.alone:
            return
        label = self._labels.get(indices[0], indices[0])
        priority = -label if isinstance(label, int) else 0
        names = [self.name(index) for index in indices]
        op, scales = self.reduction.of_arrays()
        self._reducer.grouped_allreduce_(
            grads, names, priority, op, scales, self.reduction.process_set
        )

    def groups(self, grads: Dict[int, Any]) -> List[Sequence[int]]:
        """Return the indices of gradients, given in a common order, in runs that go as one."""
        indices = list(grads)
        if self.reduction.num_groups:
            return split(indices, self.reduction.num_groups)
        return split_by_bytes(indices, [self._bytes(i, grads[i]) for i in indices])

    def name(self, index: int) -> str:
        """Return the gradient's name, the same on every rank."""
        name = self._names.get(index)
        if name is None:
            name = self._names[index] = f"{self.owner}.{self._labels.get(index, index)}"
        return name

    def _bytes(self, index: int, array) -> int:
        """Return its size from a cache: asking MXNet takes as long as pushing a gradient.

        After a change of shape the size is the old one; it only decides the groups.
        """
        if index not in self._sizes:
            self._sizes[index] = array.size * np.dtype(array.dtype).itemsize
        return self._sizes[index]
