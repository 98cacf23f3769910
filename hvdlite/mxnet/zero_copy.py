"""Gradients in memory that all ranks of a host map, so that averaging them needs no copy."""

from typing import List, Sequence

import mxnet as mx
import numpy as np

from hvdlite import numpy as collectives
from hvdlite.names import owner_name
from hvdlite.objects import agree
from hvdlite.shared import shared_bytes

_ALIGNMENT = 64  # bytes: a cache line, and the widest vector


def share_gradients(params: Sequence) -> List[str]:
    """Move the gradients of gluon Parameters into shared memory; return the names of those moved.

    Averaging them then copies nothing, for ``DistributedTrainer`` and ``DistributedOptimizer``
    alike, and training is the same, bit for bit. Collective; every rank passes the same
    parameters, initialised, before the first backward: a net with ``hybridize(static_shape=True)``
    keeps writing to the arrays that its first backward wrote to, and a reference to a gradient
    that was taken before goes stale::

        net(batch)  # parameters whose shape was unknown are initialised by the first forward
        hvd.share_gradients(net.collect_params().values())

    Left where they are: all of them where ranks are on several hosts or /dev/shm has no room, and
    those that are sparse, on several contexts or not on a CPU, without gradient
    (``grad_req='null'``) or of a dtype that NumPy lacks.

    :raises ValueError: a parameter is not initialised, or backward has written its gradient.
    """
    owner = owner_name("gradients")
    params = list(params)
    for param in params:
        _check_new(param)
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


def _check_new(param) -> None:
    if param._data is None:
        raise ValueError(
            f"parameter '{param.name}' is not initialised: share_gradients comes after the first "
            "forward and before the first backward"
        )
    if any(data._fresh_grad for data in param.list_data()):
        raise ValueError(
            f"the gradient of parameter '{param.name}' has been computed already: share_gradients "
            "comes before the first backward"
        )


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
    param._grad = [new]
    mx.autograd.mark_variables([param.data()], param._grad, param.grad_req)
