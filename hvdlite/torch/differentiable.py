"""Collectives that autograd records: backward runs the collective that is their gradient.

The gradients are Horovod's, scale included: docs/training.md, "Gradients through collectives".
Backward must reach a result on every rank or on none.

What has ``forward`` and ``backward`` here takes tensors by their full names, several at once.
"""

from typing import List, Sequence

import numpy as np
import torch
from torch.autograd import Function

from hvdlite.core import topology
from hvdlite.core.process_set import ProcessSet
from hvdlite.core.reduce_ops import Average, check_linear, scatter_gradient_scale
from hvdlite.torch import exchange

_NO_SCALES = (1.0, 1.0)


def is_recorded(tensors: Sequence) -> bool:
    """Tell whether autograd wants a gradient of one of the tensors."""
    return torch.is_grad_enabled() and any(getattr(t, "requires_grad", False) for t in tensors)


class Allreduce(Function):
    """Linear operations only: there is no gradient of Min, Max, Product and Adasum."""

    @staticmethod
    def forward(ctx, names, op: int, scales, process_set: ProcessSet, *tensors):
        ctx.how = names, op, scales, process_set
        return tuple(
            exchange.allreduce(
                names, tensors, op, scales, process_set, in_place=False
            ).synchronize()
        )

    @staticmethod
    def backward(ctx, *grads):
        names, op, scales, process_set = ctx.how
        check_linear(names[0], op)
        return (None,) * 4 + tuple(_reduced(names, grads, op, scales, process_set))


class Broadcast(Function):
    @staticmethod
    def forward(ctx, name: str, root_rank: int, process_set: ProcessSet, tensor):
        ctx.how = name, root_rank, process_set
        (out,) = exchange.broadcast(
            [name], [tensor], root_rank, process_set, in_place=False
        ).synchronize()
        return out

    @staticmethod
    def backward(ctx, grad):
        name, root_rank, process_set = ctx.how
        (total,) = _reduced([name], [grad], Average, _NO_SCALES, process_set)
        mine = topology.rank() == root_rank
        return None, None, None, total if mine else torch.zeros_like(total)


class Allgather(Function):
    @staticmethod
    def forward(ctx, names, rows: np.ndarray, process_set: ProcessSet, *tensors):
        ctx.how = names, rows, process_set, [tensor.shape for tensor in tensors]
        handle = exchange.allgather(names, tensors, rows.sum(axis=0), process_set)
        return tuple(handle.synchronize())

    @staticmethod
    def backward(ctx, *grads):
        names, rows, process_set, shapes = ctx.how
        totals = _reduced(names, grads, Average, _NO_SCALES, process_set)
        starts = rows[: process_set.rank()].sum(axis=0)
        own = rows[process_set.rank()]
        parts = [
            total[start : start + n].reshape(shape)
            for total, start, n, shape in zip(totals, starts, own, shapes)
        ]
        return (None, None, None, *parts)


class Reducescatter(Function):
    @staticmethod
    def forward(ctx, names, op: int, scales, process_set: ProcessSet, *tensors):
        ctx.how = names, op, scales, process_set, [tensor.shape[0] for tensor in tensors]
        handle = exchange.reducescatter(names, tensors, op, scales, process_set)
        return tuple(handle.synchronize())

    @staticmethod
    def backward(ctx, *grads):
        names, op, scales, process_set, rows = ctx.how
        check_linear(names[0], op)
        factor = scatter_gradient_scale(op, scales, process_set.size())
        scaled = [grad * factor for grad in grads]
        handle = exchange.allgather(_of_grads(names), scaled, rows, process_set)
        return (None,) * 4 + tuple(handle.synchronize())


class Alltoall(Function):
    @staticmethod
    def forward(ctx, name: str, matrix: np.ndarray, process_set: ProcessSet, tensor):
        ctx.how = name, matrix, process_set, tensor.shape
        (out,) = exchange.alltoall(name, tensor, matrix, process_set).synchronize()
        return out

    @staticmethod
    def backward(ctx, grad):
        name, matrix, process_set, shape = ctx.how
        back = np.ascontiguousarray(matrix.T)
        (sent,) = exchange.alltoall(*_of_grads([name]), grad, back, process_set).synchronize()
        unsent = grad.new_zeros((shape[0] - len(sent), *shape[1:]))
        return None, None, None, torch.cat([sent, unsent])


def _of_grads(names) -> List[str]:
    return [f"{name}.grad" for name in names]


def _reduced(names, grads, op, scales, process_set) -> List[torch.Tensor]:
    return exchange.allreduce(
        _of_grads(names), grads, op, scales, process_set, in_place=False
    ).synchronize()
