"""hvdlite for MXNet: the same names as ``hvdlite`` itself, on ``mx.nd`` and ``mx.np`` arrays."""

try:
    import mxnet  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"hvdlite's MXNet names need MXNet ({error}): run `pip install 'hvdlite[mxnet]'`"
    ) from error

from hvdlite import (
    Average,
    HvdliteError,
    Sum,
    __version__,
    allgather_object,
    broadcast_object,
    cross_rank,
    cross_size,
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    run,
    shutdown,
    size,
    stats,
)
from hvdlite.mxnet.compression import Compression
from hvdlite.mxnet.ops import allgather, allreduce, allreduce_, broadcast, broadcast_
from hvdlite.mxnet.optimizer import DistributedOptimizer
from hvdlite.mxnet.parameters import broadcast_parameters
from hvdlite.mxnet.trainer import DistributedTrainer
from hvdlite.mxnet.zero_copy import share_gradients

__all__ = [
    "Average",
    "Compression",
    "DistributedOptimizer",
    "DistributedTrainer",
    "HvdliteError",
    "Sum",
    "__version__",
    "allgather",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "broadcast",
    "broadcast_",
    "broadcast_object",
    "broadcast_parameters",
    "cross_rank",
    "cross_size",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "run",
    "share_gradients",
    "shutdown",
    "size",
    "stats",
]
