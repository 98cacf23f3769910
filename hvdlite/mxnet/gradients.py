"""The gradients of one trainer or optimizer: their names across ranks, and their averaging."""

from typing import Dict, Sequence

from hvdlite.mxnet.compression import NoneCompressor, Reducer
from hvdlite.names import natural_order, shape_of_name
from hvdlite.objects import agree


class Gradients:
    """Averages gradients over ranks, in place, under names that are the same on every rank.

    :param owner: who they belong to, as in ``names.owner_name``.
    :param compression: a class as in ``Compression``.
    """

    def __init__(self, owner: str, compression=NoneCompressor) -> None:
        self.owner = owner
        self._reducer = Reducer(compression)
        self._labels: Dict[int, int] = {}

    @property
    def compression(self):
        """As it was given."""
        return self._reducer.compression

    def pair(self, params: Dict[int, object]) -> None:
        """Pair parameters, given by their index, with those of the other ranks. Collective, once.

        A trainer sorts by name, and Gluon's names count blocks per process: so tensors are labelled
        by natural order instead, and all ranks check that they mean the same layers.
        """
        if self._labels:
            return
        for param in params.values():
            if len(param.list_ctx()) > 1:
                raise ValueError(
                    f"parameter '{param.name}' lives on {len(param.list_ctx())} contexts: expected "
                    "one per process; start one process per context"
                )
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

    def average(self, indices: Sequence[int], grads: Sequence) -> None:
        """Start to average each gradient over all ranks; front layers, needed first, go first."""
        labelled = [(self._labels.get(index, index), grad) for index, grad in zip(indices, grads)]
        if self._labels:  # the same order on every rank, for an engine without priorities
            labelled.sort(key=lambda pair: pair[0])
        for label, grad in labelled:
            priority = -label if isinstance(label, int) else 0
            self._reducer.allreduce_(grad, f"{self.owner}.{label}", priority)
