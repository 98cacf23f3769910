"""Collectives with gradients, for ``mx.autograd.record()``: backward runs another collective.

Gradients have the same values and scale as Horovod's: docs/training.md, "Gradients through
collectives". As in ``collectives``, callers pass the tensors' full names.
"""

from typing import Callable, List

import mxnet as mx
import numpy as np
from mxnet import autograd

from hvdlite.core import topology
from hvdlite.core.process_set import ProcessSet
from hvdlite.core.reduce_ops import Average, check_linear, scatter_gradient_scale
from hvdlite.mxnet import collectives

_NO_SCALES = (1.0, 1.0)


def allreduce(names, tensors, op, scales, priority: int, process_set: ProcessSet) -> List:
    """Reduce copies of the tensors; backward reduces the gradients with the same operation."""

    def reduce_(name, own):
        return collectives.allreduce_([name], [own], op, scales, priority, process_set)[0]

    def gradient(name, grad):
        check_linear(name, op)
        return reduce_(name, grad)

    return [_like(t, _record(name, t, reduce_, gradient)) for name, t in zip(names, tensors)]


def broadcast(name: str, tensor, root_rank: int, priority: int, process_set: ProcessSet):
    """Broadcast a copy; the root's gradient is the average over ranks, all others are zero."""

    def gradient(name, grad):
        collectives.allreduce_([name], [grad], Average, _NO_SCALES, priority, process_set)
        return grad if topology.rank() == root_rank else mx.nd.zeros_like(grad)

    def broadcast_(name, own):
        return collectives.broadcast_(name, own, root_rank, priority, process_set)

    return _like(tensor, _record(name, tensor, broadcast_, gradient))


def allgather(names, tensors, rows: np.ndarray, priority: int, process_set: ProcessSet) -> List:
    """Gather rows; backward averages the gradient over ranks and returns this rank's rows."""

    def gather_one(name, tensor, of_ranks):
        def gradient(name, grad):
            _check_rows(name, of_ranks)
            collectives.allreduce_([name], [grad], Average, _NO_SCALES, priority, process_set)
            start = of_ranks[: process_set.rank()].sum()
            return grad[start : start + of_ranks[process_set.rank()]]

        def gather(name, own):
            return collectives.allgather([name], [own], [of_ranks.sum()], priority, process_set)[0]

        return _record(name, tensor, gather, gradient)

    return [gather_one(*each) for each in zip(names, tensors, rows.T)]


def reducescatter(names, tensors, op, scales, priority: int, process_set: ProcessSet) -> List:
    """Reduce and scatter; backward gathers the gradients and scales them."""
    scale = scatter_gradient_scale(op, scales, process_set.size())

    def scatter_one(name, tensor):
        def gradient(name, grad):
            check_linear(name, op)
            _check_rows(name, np.array([tensor.shape[0] // process_set.size()]))
            rows = [tensor.shape[0]]
            return collectives.allgather([name], [grad], rows, priority, process_set)[0] * scale

        def scatter(name, own):
            return collectives.reducescatter([name], [own], op, scales, priority, process_set)[0]

        return _record(name, tensor, scatter, gradient)

    return [scatter_one(*each) for each in zip(names, tensors)]


def alltoall(name: str, tensor, matrix: np.ndarray, priority: int, process_set: ProcessSet):
    """Exchange rows; backward returns each row's gradient to its sender; unsent rows get zeros."""
    back = np.ascontiguousarray(matrix.T)

    def exchange(name, own):
        return collectives.alltoall(name, own, matrix, priority, process_set)

    def gradient(name, grad):
        _check_rows(name, np.concatenate([matrix.sum(axis=0), matrix.sum(axis=1)]))
        sent = collectives.alltoall(name, grad, back, priority, process_set)
        left = tensor.shape[0] - sent.shape[0]
        if not left:
            return sent
        return mx.nd.concat(sent, mx.nd.zeros((left, *sent.shape[1:]), dtype=sent.dtype), dim=0)

    return _record(name, tensor, exchange, gradient)


def _check_rows(name: str, rows: np.ndarray) -> None:
    """Raise on every rank if some rank has no rows: MXNet does not call backward on that rank."""
    if not rows.all():
        raise ValueError(
            f"tensor '{name}': a rank has no rows (numbers of rows: {rows}), and MXNet runs no "
            "backward on that rank: give every rank at least one row"
        )


def _record(name: str, tensor, forward: Callable, backward: Callable):
    """Return ``forward(name, copy of tensor)``, whose gradient is ``backward(name, gradient)``.

    Both functions may overwrite their array. They get a 0-d tensor as an array of shape (1,).
    ``backward`` takes and returns an ``mx.nd`` array; MXNet's own threads call ``backward``.
    """
    # Autograd records the copy and the reshape, so that it adds up gradients of several uses.
    own = collectives.copy(tensor)
    with mx.util.np_shape():
        own = own if own.shape else own.reshape((1,))
    return _Collective(name, forward, backward)(own)


def _like(tensor, result):
    with mx.util.np_shape():
        return result if tensor.shape else result.reshape(())


class _Collective(autograd.Function):
    def __init__(self, name: str, forward: Callable, backward: Callable) -> None:
        super().__init__()
        self._name = name
        self._forward = forward
        self._backward = backward
        self._last = None  # the gradient of an earlier backward with retain_graph=True

    def forward(self, tensor):
        return self._forward(self._name, tensor.detach())

    def backward(self, grad):
        if self._last is not None:  # wait, because two running collectives can't have one name
            self._last.wait_to_read()
        self._last = self._backward(f"{self._name}.grad", grad.copy().as_nd_ndarray())
        return self._last.as_np_ndarray() if isinstance(grad, mx.np.ndarray) else self._last
