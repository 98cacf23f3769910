"""The gradients of one trainer or optimizer: their names across ranks, and their averaging."""

from typing import Dict, Sequence

from hvdlite.mxnet.compression import NoneCompressor
from hvdlite.mxnet.ops import allreduce_
from hvdlite.mxnet.sparse import allreduce_rows, is_sparse
from hvdlite.names import natural_order, shape_of_name
from hvdlite.numpy import Average
from hvdlite.objects import agree


def reduce_(tensor, name: str, op: int, priority: int, compression=NoneCompressor) -> None:
    """Start an allreduce in place of a dense array that is compressed on its way."""
    sent, context = compression.compress(tensor)
    allreduce_(sent, name=name, op=op, priority=priority)
    if sent is not tensor:
        tensor[:] = compression.decompress(sent, context)


def agree_on_order(owner: str, params: Dict[int, object], labels: Dict[int, int]) -> None:
    """Raise unless all ranks come to their sparse gradients, each of which is waited for, alike."""
    sparse = [i for i in sorted(params) if params[i]._grad_stype != "default"]
    if len(sparse) > 1:
        agree(
            f"{owner}, order of row_sparse gradients",
            [str(labels[i]) for i in sparse],
            [params[i].name for i in sparse],
        )


class Gradients:
    """Averages gradients over ranks, in place, under names that are the same on every rank.

    :param owner: who they belong to, as in ``names.owner_name``.
    :param compression: a class as in ``Compression``; row_sparse gradients are not compressed.
    :param sparse_as_dense: send row_sparse gradients whole; a row that sums to zero is left out.
    """

    def __init__(
        self, owner: str, compression=NoneCompressor, sparse_as_dense: bool = False
    ) -> None:
        self.owner = owner
        self.compression = compression
        self.sparse_as_dense = sparse_as_dense
        self._labels: Dict[int, int] = {}

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
        facts = [
            f"({p.dtype}, {p.shape}, grad_req {p.grad_req}, {p._grad_stype} gradient)"
            for p in map(params.get, order)
        ]
        names = [params[i].name for i in order]
        agree(
            self.owner,
            [f"{shape_of_name(name)} {fact}" for name, fact in zip(names, facts)],
            [f"{name} {fact}" for name, fact in zip(names, facts)],
        )
        self._labels = {index: label for label, index in enumerate(order)}
        agree_on_order(self.owner, params, self._labels)

    def average(self, indices: Sequence[int], grads: Sequence) -> None:
        """Average each gradient over all ranks, front layers, needed first, before others.

        Only sparse ones are waited for, when all dense ones are on their way.
        """
        labelled = [(self._labels.get(index, index), grad) for index, grad in zip(indices, grads)]
        if self._labels:  # the same order on every rank, for an engine without priorities
            labelled.sort(key=lambda pair: pair[0])
        for label, grad in sorted(labelled, key=lambda pair: is_sparse(pair[1])):
            name = f"{self.owner}.{label}"
            priority = -label if isinstance(label, int) else 0
            if not is_sparse(grad):
                reduce_(grad, name, Average, priority, self.compression)
            elif not self.sparse_as_dense:
                allreduce_rows([grad], name, Average).copyto(grad)
            else:
                dense = grad.tostype("default")
                reduce_(dense, name, Average, priority, self.compression)
                dense.tostype("row_sparse").copyto(grad)
