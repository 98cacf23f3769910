"""Gradients in memory that all ranks of a host map, so that averaging them needs no copy."""

from typing import List, Sequence

import mxnet as mx
import numpy as np

from hvdlite import numpy as collectives
from hvdlite.names import owner_name
from hvdlite.objects import agree
from hvdlite.shared import shared_bytes

_ALIGNMENT = 64  # bytes: a cache line, and the widest vector


def share_gradients(params: Sequence, owner: str = "") -> List[str]:
    """Move the gradients of gluon Parameters into shared memory; return the names of those moved.

    Collective; every rank passes the same parameters, initialised. Training goes on as before, bit
    for bit. Left where they are: all of them where ranks are on several hosts or /dev/shm has no
    room, and those that are sparse, on several contexts or not on a CPU, without gradient
    (``grad_req='null'``) or of a dtype that NumPy lacks.

    ``DistributedTrainer`` does this by itself. With ``DistributedOptimizer``, call it once after
    the parameters are initialised::

        hvd.share_gradients(net.collect_params().values())
    """
    owner = owner or owner_name("gradients")
    moved = [param for param in params if _can_move(param)]
    sizes = [_padded_bytes(param) for param in moved]
    agree(owner, [str(size) for size in sizes])
    memory = shared_bytes(sum(sizes), owner) if moved else None
    if memory is None:
        return []
    ends = np.cumsum(sizes)
    for param, size, end in zip(moved, sizes, ends):
        _move(param, memory[end - size : end])
    return [param.name for param in moved]


def _can_move(param) -> bool:
    if param.grad_req == "null" or param._grad is None or len(param._grad) != 1:
        return False
    grad = param._grad[0]
    is_plain = grad.stype == "default" and param.data().stype == "default"
    known = np.dtype(grad.dtype) in collectives.DTYPES
    return is_plain and known and grad.context.device_type.startswith("cpu") and grad.size > 0


def _padded_bytes(param) -> int:
    nbytes = param._grad[0].size * np.dtype(param._grad[0].dtype).itemsize
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _move(param, memory: np.ndarray) -> None:
    """Let the parameter's gradient live in the memory, with the value that it has."""
    old = param._grad[0]
    view = memory.view(old.dtype)[: old.size].reshape(old.shape)
    view[...] = old.asnumpy()
    new = mx.nd.from_numpy(view, zero_copy=True)
    if isinstance(old, mx.np.ndarray):
        new = new.as_np_ndarray()
    data = param.data()
    fresh = data._fresh_grad  # whether backward has written it since the last update
    param._grad = [new]
    mx.autograd.mark_variables([data], param._grad, param.grad_req)
    data._fresh_grad = fresh
