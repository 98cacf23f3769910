"""Moves gradients to memory that all ranks of a host map, so that averaging needs no copy.

A gradient can move only if nothing else refers to its old array. For example, a net with
``hybridize(static_shape=True)`` always writes to the arrays of its first backward, and the script
may have a variable for an array. MXNet counts the references to an array's memory, and Python
counts the references to the array; this module checks both counts.
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
from hvdlite.core.agreement import agree
from hvdlite.core.module_state import ModuleState
from hvdlite.core.names import owner_name
from hvdlite.mxnet.collectives import is_shareable, nbytes_of
from hvdlite.mxnet.push import references


def share_gradients(params: Sequence) -> List[str]:
    """Move gradients of gluon Parameters to shared memory; return the names of these Parameters.

    Then averaging needs no copy, and on one host the results are bitwise the same. Call it if you
    use ``DistributedOptimizer``; a ``DistributedTrainer`` moves its gradients itself. Collective:
    before the first backward, every rank passes the same initialized parameters::

        net(batch)  # the first forward initializes parameters whose shape was unknown
        hvd.share_gradients(net.collect_params().values())

    If each host has one rank, no gradient moves. A gradient also does not move if it is sparse, is
    on several contexts or not on a CPU, has ``grad_req='null'`` or a dtype that NumPy lacks, or if
    something else refers to it, because that reference would keep the old array.

    :param params: gluon Parameters, such as ``net.collect_params().values()``.
    :raises ValueError: a parameter is not initialized, or backward has written its gradient.
    :raises hvdlite.HvdliteError: the ranks have different parameters.
    """
    owner, params = owner_name("gradients"), list(params)
    for param in params:
        _check_new(param)
    agree(owner, [f"{param.shape} {param.dtype} {param.grad_req}" for param in params])
    SharedGradients(params).join(params, owner)
    return [param.name for param in params if is_shared(param)]


def is_shared(param) -> bool:
    """Return True if the parameter's gradient is averaged without a copy."""
    array = _gradients.direct.get(param)
    return array is not None and param._grad is not None and param._grad[0] is array


def forget_shared(params: Sequence) -> None:
    """Forget which gradients of these parameters the ended job averaged without a copy."""
    for param in params:
        _gradients.direct.pop(param, None)


class SharedGradients:
    """Moves gradients to a region of this rank's memory; :meth:`join` lets other ranks map it.

    The constructor moves the gradients of initialized parameters. The gradient of another parameter
    moves when MXNet makes it. No rank waits for another rank before :meth:`join`.

    :param params: in the same order on all ranks; if one rank's list is empty, no rank shares.
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
        """Map the ranks' regions; gradients at equal offsets are reduced there. Collective."""
        memory, self._memory = self._memory, None
        offsets = [self._offset_of(param) for param in params]
        if not shared_memory.join(memory, owner):
            return
        of_ranks = collectives.allgather(np.array([offsets], np.int64), f"offsets.{owner}")
        for param, own in zip(params, of_ranks.T):
            if own[0] >= 0 and (own == own[0]).all():
                _gradients.direct[param] = param._grad[0]

    def _offset_of(self, param) -> int:
        """Return the offset in bytes of the parameter's gradient in the region; -1: not there."""
        offset, array = self._offsets.get(param, (-1, None))
        return offset if array is not None and param._grad and param._grad[0] is array else -1

    def _move_when_made(self, param) -> None:
        def init_grad(own):
            del own._init_grad  # only once: a later gradient stays where MXNet puts it
            own._init_grad()
            if self._memory and _can_move(own):
                self._move(own, is_new=True)

        param._init_grad = types.MethodType(init_grad, param)

    def _move(self, param, is_new: bool) -> None:
        """Move the gradient to the region, unless something else refers to the gradient's memory.

        :param is_new: the gradient has no value yet, so nothing else refers to it.
        """
        assert self._memory is not None
        offset = self._memory.used
        # Take memory even if the gradient can't move: later offsets must be equal on all ranks.
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
        _gradients.moved[param] = new
        self._offsets[param] = (offset, new)


def _check_new(param) -> None:
    if param._data is None:
        raise ValueError(
            f"parameter '{param.name}' is not initialized: call share_gradients after the first "
            "forward and before the first backward"
        )
    # not list_data(), which raises for row_sparse weights
    if any(data._fresh_grad for data in param._data):
        raise ValueError(
            f"the gradient of parameter '{param.name}' has been computed already: call "
            "share_gradients before the first backward"
        )


def _can_move(param) -> bool:
    if param.grad_req == "null" or not param._grad or len(param._grad) != 1:
        return False
    return param._stype == "default" and is_shareable(param._grad[0])


def _wait_for_references() -> None:
    """Wait until MXNet has dropped the references of operations that have ended."""
    mx.nd.waitall()
    time.sleep(1e-2)  # MXNet drops references after waitall() returns, and has no call to wait


def _is_free(param) -> bool:
    """Return True if only the parameter and autograd refer to the gradient, so that it can move."""
    expected, found = _gradients.references_of_new(), _references(param._grad)
    held_by_us = 2 if _gradients.moved.get(param) is param._grad[0] else 0
    return expected is not None and found[0] <= expected[0] and found[1] <= expected[1] + held_by_us


def _references(grads: list) -> Tuple[int, int]:
    """Return the reference counts of the memory and of the object of the array ``grads[0]``."""
    return references(grads[0]), sys.getrefcount(grads[0])


def _references_of_new() -> Optional[Tuple[int, int]]:
    """Return what _references() returns for a new gradient; None: this MXNet can't count them."""
    data, grads = mx.nd.zeros((1,)), [mx.nd.zeros((1,))]
    mx.autograd.mark_variables([data], grads)
    _wait_for_references()
    alone = _references(grads)
    another = data.grad
    counted = _references(grads)[0] - alone[0]
    del another
    return alone if counted == 1 and _references(grads) == alone else None


class _Gradients(ModuleState):
    def begin(self) -> None:
        # For each Parameter whose gradient has moved, the new gradient.
        self.moved: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
        # The entries of ``moved`` whose gradients the current job reduces without a copy.
        self.direct: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
        self.references_of_new = lru_cache(maxsize=None)(_references_of_new)


_gradients = _Gradients()
