"""Collectives that autograd records: backward of a collective runs another collective.

The gradients have Horovod's scale: docs/training.md, "Gradients through collectives". With
``create_graph`` gradients have gradients, too. Backward must reach a result on every rank or on no
rank. ``names`` are the full names of the tensors.
"""

from typing import List, Sequence, Tuple

import torch
from torch.autograd import Function

from hvdlite.core import topology
from hvdlite.core.process_set import ProcessSet
from hvdlite.core.reduce_ops import Average, check_linear, scatter_gradient_scale
from hvdlite.torch import exchange

_NO_SCALES = (1.0, 1.0)


def is_recorded(tensors: Sequence) -> bool:
    """Return True if autograd needs a gradient of one of the tensors."""
    return torch.is_grad_enabled() and any(getattr(t, "requires_grad", False) for t in tensors)


class Allreduce(Function):
    """An allreduce. Only Sum and Average have a gradient."""

    @staticmethod
    def forward(ctx, names, op: int, scales, process_set: ProcessSet, *tensors):
        ctx.arguments = names, op, scales, process_set
        return tuple(exchange.allreduce(names, tensors, op, scales, process_set).synchronize())

    @staticmethod
    def backward(ctx, *grads):
        names, op, scales, process_set = ctx.arguments
        check_linear(names[0], op)
        return (None,) * 4 + _reduced(names, grads, op, scales, process_set)


class Broadcast(Function):
    @staticmethod
    def forward(ctx, name: str, root_rank: int, process_set: ProcessSet, tensor):
        ctx.arguments = name, root_rank, process_set
        (out,) = exchange.broadcast([name], [tensor], root_rank, process_set).synchronize()
        return out

    @staticmethod
    def backward(ctx, grad):
        name, root_rank, process_set = ctx.arguments
        (total,) = _reduced([name], [grad], Average, _NO_SCALES, process_set)
        mine = torch.tensor(topology.rank() == root_rank, device=total.device)
        # all ranks call `where`, so that all record the same graph for second gradients
        return None, None, None, total.where(mine, 0)


class Allgather(Function):
    @staticmethod
    def forward(ctx, names, process_set: ProcessSet, *tensors):
        pairs = exchange.allgather(names, tensors, process_set).synchronize()
        ctx.arguments = (
            names,
            process_set,
            [(rows_from, t.shape) for (_, rows_from), t in zip(pairs, tensors)],
        )
        return tuple(rows for rows, _ in pairs)

    @staticmethod
    def backward(ctx, *grads):
        names, process_set, ranks_and_shapes = ctx.arguments
        totals = _reduced(names, grads, Average, _NO_SCALES, process_set)
        parts = [
            total.split(rows_from.tolist())[process_set.rank()].reshape(shape)
            for total, (rows_from, shape) in zip(totals, ranks_and_shapes)
        ]
        return (None, None, *parts)


class Reducescatter(Function):
    @staticmethod
    def forward(ctx, names, op: int, scales, process_set: ProcessSet, *tensors):
        ctx.arguments = names, op, scales, process_set
        handle = exchange.reducescatter(names, tensors, op, scales, process_set)
        return tuple(handle.synchronize())

    @staticmethod
    def backward(ctx, *grads):
        names, op, scales, process_set = ctx.arguments
        check_linear(names[0], op)
        factor = scatter_gradient_scale(op, scales, process_set.size())
        scaled = [grad * factor for grad in grads]
        return (None,) * 4 + Allgather.apply(_of_grads(names), process_set, *scaled)


class Alltoall(Function):
    @staticmethod
    def forward(ctx, name: str, splits, process_set: ProcessSet, tensor):
        ((rows, rows_from),) = exchange.alltoall(name, tensor, splits, process_set).synchronize()
        received = torch.from_numpy(rows_from)
        ctx.arguments = name, rows_from, process_set, tensor.shape
        ctx.mark_non_differentiable(received)
        return rows, received

    @staticmethod
    def backward(ctx, grad, _):
        name, rows_from, process_set, shape = ctx.arguments
        (full,) = _of_grads([name])
        sent, _ = Alltoall.apply(full, rows_from, process_set, grad)
        unsent = grad.new_zeros((shape[0] - len(sent), *shape[1:]))
        return None, None, None, torch.cat([sent, unsent])


def _of_grads(names) -> List[str]:
    return [f"{name}.grad" for name in names]


def _reduced(names, grads, op, scales, process_set) -> Tuple[torch.Tensor, ...]:
    return Allreduce.apply(_of_grads(names), op, scales, process_set, *grads)
