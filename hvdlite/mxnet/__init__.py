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
    ProcessSet,
    Sum,
    __version__,
    add_process_set,
    allgather_object,
    broadcast_object,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    remove_process_set,
    rocm_built,
    run,
    shutdown,
    size,
)
from hvdlite.mxnet.compression import Compression
from hvdlite.mxnet.ops import allgather, allreduce, allreduce_, broadcast, broadcast_
from hvdlite.mxnet.optimizer import DistributedOptimizer
from hvdlite.mxnet.parameters import broadcast_parameters
from hvdlite.mxnet.sync_batch_norm import SyncBatchNorm
from hvdlite.mxnet.trainer import DistributedTrainer
from hvdlite.mxnet.zero_copy import share_gradients

__all__ = [
    "Average",
    "Compression",
    "DistributedOptimizer",
    "DistributedTrainer",
    "HvdliteError",
    "ProcessSet",
    "Sum",
    "SyncBatchNorm",
    "__version__",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "broadcast",
    "broadcast_",
    "broadcast_object",
    "broadcast_parameters",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "remove_process_set",
    "rocm_built",
    "run",
    "share_gradients",
    "shutdown",
    "size",
]
