"""The collectives of ``ops`` in a form that returns a handle. Horovod lacks this form for MXNet.

MXNet scripts rarely need a handle, because reading an array waits. A handle adds ``poll()``.
"""

import functools
import inspect

from hvdlite.core.handles import Handle, started
from hvdlite.mxnet import ops, push


def _asynchronous(function):
    def begin(*args, **kwargs) -> Handle:
        result = function(*args, **kwargs)
        arrays = list(result) if isinstance(result, (list, tuple)) else [result]

        def finish():
            for array in arrays:
                array.wait_to_read()
            return result

        return Handle(push.watch(arrays), finish)

    return started(function, begin)


def _without_waiting(function, grouped: bool):
    """Return a variant of a reducescatter that does not wait for the other ranks' calls."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def scatter(*args, **kwargs):
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return ops.scatter(False, grouped, *bound.args)

    return scatter


allreduce_async = _asynchronous(ops.allreduce)
allreduce_async_ = _asynchronous(ops.allreduce_)
grouped_allreduce_async = _asynchronous(ops.grouped_allreduce)
grouped_allreduce_async_ = _asynchronous(ops.grouped_allreduce_)
allgather_async = _asynchronous(ops.allgather)
grouped_allgather_async = _asynchronous(ops.grouped_allgather)
broadcast_async = _asynchronous(ops.broadcast)
broadcast_async_ = _asynchronous(ops.broadcast_)
alltoall_async = _asynchronous(ops.alltoall)
reducescatter_async = _asynchronous(_without_waiting(ops.reducescatter, grouped=False))
grouped_reducescatter_async = _asynchronous(
    _without_waiting(ops.grouped_reducescatter, grouped=True)
)
