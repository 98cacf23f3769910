"""The gradients of one trainer or optimizer: their names across ranks, and their averaging."""

import math
from typing import Any, Dict, List, NamedTuple, Sequence

from hvdlite.groups import ProcessSet, global_process_set
from hvdlite.mxnet.compression import NoneCompressor, Reducer, check_compression
from hvdlite.names import natural_order, shape_of_name
from hvdlite.numpy import Average, Sum
from hvdlite.objects import agree


class Reduction(NamedTuple):
    """How gradients are reduced over ranks; the same on every rank.

    :param compression: one of ``Compression``, or a class like them.
    :param predivide_factor: f: gradients are divided by f before they are summed, and multiplied by
        f / size after it.
    :param num_groups: into so many groups of about as many gradients each; 0: no groups.
    :param op: Average or Sum.
    :param process_set: for now that of all ranks.
    """

    compression: Any = NoneCompressor
    predivide_factor: float = 1.0
    num_groups: int = 0
    op: int = Average
    process_set: ProcessSet = global_process_set

    def checked(self) -> "Reduction":
        """Return it; raise ValueError where it makes no sense."""
        factor, groups = self.predivide_factor, self.num_groups
        if not (math.isfinite(factor) and factor > 0):
            raise ValueError(f"gradient_predivide_factor is {factor}: expected a positive number")
        if not isinstance(groups, int) or groups < 0:
            raise ValueError(f"num_groups is {groups!r}: expected 0 or a number of groups")
        if self.op not in (Average, Sum):
            raise ValueError(f"op is {self.op!r}: expected hvdlite.Average or hvdlite.Sum")
        if factor != 1 and self.op != Average:
            raise ValueError(f"gradient_predivide_factor is {factor}: it goes with op=Average only")
        if self.process_set is not global_process_set:
            raise ValueError(f"process_set is {self.process_set!r}: expected global_process_set")
        check_compression(self.compression)
        return self


class Gradients:
    """Averages gradients over ranks, in place, under names that are the same on every rank.

    A gradient is given as the list of its arrays, one for each of the parameter's contexts: they
    are summed here first, and each gets the result.

    :param owner: who they belong to, as in ``names.owner_name``.
    """

    def __init__(self, owner: str, reduction: Reduction) -> None:
        self.owner = owner
        self.reduction = reduction
        self._reducer = Reducer(reduction.compression)
        self._labels: Dict[int, int] = {}

    def pair(self, params: Dict[int, object]) -> None:
        """Pair parameters, given by their index, with those of the other ranks. Collective, once.

        A trainer sorts by name, and Gluon's names count blocks per process: so tensors are labelled
        by natural order instead, and all ranks check that they mean the same layers.
        """
        if self._labels:
            return
        indices = sorted(params)
        order = [indices[i] for i in natural_order([params[i].name for i in indices])]
        facts = [f"({p.dtype}, {p.shape}, grad_req {p.grad_req})" for p in map(params.get, order)]
        names = [params[i].name for i in order]
        agree(
            self.owner,
            [f"{shape_of_name(name)} {fact}" for name, fact in zip(names, facts)],
            [f"{name} {fact}" for name, fact in zip(names, facts)],
        )
        self._labels = {index: label for label, index in enumerate(order)}

    def in_order(self, indices: Sequence[int]) -> List[int]:
        """Return the indices of paired parameters in the order that all ranks have in common."""
        return sorted(indices, key=lambda index: self._labels.get(index, index))

    def average(self, grads: Dict[int, Sequence]) -> None:
        """Start to average each gradient over all ranks; front layers, needed first, go first."""
        indices = self.in_order(grads) if self._labels else list(grads)
        for arrays in map(grads.get, indices):
            for other in arrays[1:]:
                arrays[0] += other.as_in_context(arrays[0].context)
        for group in split(indices, self.reduction.num_groups or len(indices)):
            self._reduce({self._labels.get(i, i): grads[i][0] for i in group})
        for first, *others in grads.values():
            for other in others:
                first.copyto(other)

    def _reduce(self, group: Dict[Any, Any]) -> None:
        factor = self.reduction.predivide_factor
        for label, grad in group.items():
            self._reducer.allreduce_(
                grad, f"{self.owner}.{label}", priority=-label if isinstance(label, int) else 0,
                op=self.reduction.op, scales=(1 / factor, factor),
            )  # fmt: skip


def split(items: Sequence, parts: int) -> List[Sequence]:
    """Return the items in so many runs whose lengths differ by one at most; none is empty."""
    ends = [len(items) * (i + 1) // parts for i in range(parts)]
    runs = [items[start:end] for start, end in zip([0, *ends], ends)]
    return [run for run in runs if len(run)]
