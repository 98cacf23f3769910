"""Gradients in memory that all ranks of a host map, so that averaging copies nothing.

A gradient can move into that memory only if nothing else refers to its old array: a net with
``hybridize(static_shape=True)`` keeps writing to the arrays of its first backward, and the user may
hold arrays. MXNet counts the references to an array's memory, and Python those to the array; this
module checks both.
"""

import sys
import time
import types
import weakref
from functools import lru_cache
from typing import List, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np

from hvdlite import numpy as collectives
from hvdlite.core import shared_memory
from hvdlite.core.names import owner_name
from hvdlite.core.objects import agree
from hvdlite.mxnet.collectives import is_shareable, nbytes_of
from hvdlite.mxnet.push import references

# the new gradient of each Parameter
_moved: "weakref.WeakKeyDictionary" = weakref.WeakKeyDictionary()
# the new gradient of each Parameter that is reduced in place
_direct: "weakref.WeakKeyDictionary" = weakref.WeakKeyDictionary()


def share_gradients(params: Sequence) -> List[str]:
    """Move the gradients of gluon Parameters into shared memory; return the names of those in it.

    For ``DistributedOptimizer``; a ``DistributedTrainer`` calls it itself. Averaging then copies
    nothing, and on one host training is the same, bit for bit. Collective: before the first
    backward every rank passes the same parameters, initialised::

        net(batch)  # parameters whose shape was unknown are initialised by the first forward
        hvd.share_gradients(net.collect_params().values())

    If each host has one rank, no gradient moves. A gradient also stays if it is sparse, on several
    contexts or not on a CPU, of ``grad_req='null'``, of a dtype that NumPy lacks, or if something
    else refers to it, because that reference would go stale.

    :param params: gluon Parameters, such as ``net.collect_params().values()``.
    :raises ValueError: a parameter is not initialised, or backward has written its gradient.
    :raises hvdlite.HvdliteError: the ranks have different parameters.
    """
    owner, params = owner_name("gradients"), list(params)
    for param in params:
        _check_new(param)
    agree(owner, [f"{param.shape} {param.dtype} {param.grad_req}" for param in params])
    SharedGradients(params).join(params, owner)
    return [param.name for param in params if is_shared(param)]


def is_shared(param) -> bool:
    """Tell whether averaging the parameter's gradient copies nothing."""
    array = _direct.get(param)
    return array is not None and param._grad is not None and param._grad[0] is array


def forget_shared(params: Sequence) -> None:
    """Record that the job in which these gradients were shared has ended."""
    for param in params:
        _direct.pop(param, None)


class SharedGradients:
    """Gradients in this rank's memory, which the other ranks of the host will map.

    Gradients of initialised parameters move at once, others when they are made. No rank waits for
    another before :meth:`join`.

    :param params: in the same order on all ranks; if one rank gives none, no rank shares.
    """

    def __init__(self, params: Sequence) -> None:
        self._memory = shared_memory.SharedMemory.reserve() if params else None
        self._offsets: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
        if not self._memory:
            return
        _wait_for_references()
        for param in params:
            if param._data is None and param._deferred_init:
                self._move_when_made(param)
            elif _can_move(param) and not is_shared(param):
                self._move(param, is_new=False)

    def join(self, params: Sequence, owner: str) -> None:
        """From now on reduce gradients in place if their offsets agree on all ranks. Collective."""
        memory, self._memory = self._memory, None
        offsets = [self._offset_of(param) for param in params]
        if not shared_memory.join(memory, owner):
            return
        of_ranks = collectives.allgather(np.array([offsets], np.int64), f"offsets.{owner}")
        for param, own in zip(params, of_ranks.T):
            if own[0] >= 0 and (own == own[0]).all():
                _direct[param] = param._grad[0]

    def _offset_of(self, param) -> int:
        """Return the offset of the parameter's gradient in the memory; -1: it is elsewhere."""
        offset, array = self._offsets.get(param, (-1, None))
        return offset if array is not None and param._grad and param._grad[0] is array else -1

    def _move_when_made(self, param) -> None:
        def init_grad(own):
            del own._init_grad  # only once, so a gradient that is made again later is private
            own._init_grad()
            if self._memory and _can_move(own):
                self._move(own, is_new=True)

        param._init_grad = types.MethodType(init_grad, param)

    def _move(self, param, is_new: bool) -> None:
        """Move the parameter's gradient, with its value, into the memory."""
        assert self._memory is not None  # there is memory whenever a gradient moves
        offset = self._memory.used
        # Taken even if it is not used, so that offsets stay equal on all ranks.
        memory = self._memory.take(nbytes_of(param._grad[0]))
        if memory is None or not (is_new or _is_free(param)):
            return
        old = param._grad[0]
        view = memory.view(old.dtype).reshape(old.shape)
        if not is_new:
            view[...] = old.asnumpy()
        new = mx.nd.from_numpy(view, zero_copy=True)
        if isinstance(old, mx.np.ndarray):
            new = new.as_np_ndarray()
        param._grad = [new]
        mx.autograd.mark_variables([param.data()], param._grad, param.grad_req)
        _moved[param] = new
        self._offsets[param] = (offset, new)


def _check_new(param) -> None:
    if param._data is None:
        raise ValueError(
            f"parameter '{param.name}' is not initialised: share_gradients comes after the first "
            "forward and before the first backward"
        )
    # not list_data(), which refuses row_sparse weights
    if any(data._fresh_grad for data in param._data):
        raise ValueError(
            f"the gradient of parameter '{param.name}' has been computed already: share_gradients "
            "comes before the first backward"
        )


def _can_move(param) -> bool:
    if param.grad_req == "null" or not param._grad or len(param._grad) != 1:
        return False
    return param._stype == "default" and is_shareable(param._grad[0])


def _wait_for_references() -> None:
    """Wait until MXNet has dropped the references of operations that have ended."""
    mx.nd.waitall()
    time.sleep(1e-2)  # waits, because MXNet drops references after it has woken waiters


def _is_free(param) -> bool:
    """Tell whether only the parameter and autograd refer to its gradient, so that it can move."""
    expected, found = _references_of_new(), _references(param._grad)
    held_by_us = 2 if _moved.get(param) is param._grad[0] else 0
    return expected is not None and found[0] <= expected[0] and found[1] <= expected[1] + held_by_us


def _references(grads: list) -> Tuple[int, int]:
    """Return the reference counts of the memory and of the array, of the one array in the list."""
    return references(grads[0]), sys.getrefcount(grads[0])


@lru_cache(maxsize=None)
def _references_of_new() -> Optional[Tuple[int, int]]:
    """Return both counts for a new gradient; None if this MXNet does not let us count."""
    data, grads = mx.nd.zeros((1,)), [mx.nd.zeros((1,))]
    mx.autograd.mark_variables([data], grads)
    _wait_for_references()
    alone = _references(grads)
    another = data.grad
    counted = _references(grads)[0] - alone[0]
    del another
    return alone if counted == 1 and _references(grads) == alone else None
