"""Data-parallel training for Apache MXNet over MPI.

``import hvdlite as hvd`` is all that a script needs. What works on MXNet's arrays comes from
``hvdlite.mxnet``, which is imported when the first such name is used; the rest needs no MXNet.
"""

from hvdlite._native import HvdliteError
from hvdlite._version import __version__
from hvdlite.context import (
    cross_rank,
    cross_size,
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from hvdlite.numpy import Average, Sum
from hvdlite.objects import allgather_object, broadcast_object

_ON_MXNET = (
    "Compression",
    "DistributedOptimizer",
    "DistributedTrainer",
    "allgather",
    "allreduce",
    "allreduce_",
    "broadcast",
    "broadcast_",
    "broadcast_parameters",
    "share_gradients",
)

__all__ = [
    "Average",
    "HvdliteError",
    "Sum",
    "__version__",
    "allgather_object",
    "broadcast_object",
    "cross_rank",
    "cross_size",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "shutdown",
    "size",
    *_ON_MXNET,
]


def __getattr__(name):
    if name not in _ON_MXNET:
        raise AttributeError(f"module 'hvdlite' has no attribute '{name}'")
    import hvdlite.mxnet

    return getattr(hvdlite.mxnet, name)


def __dir__():
    return sorted({*globals(), *_ON_MXNET})
