"""hvdlite for PyTorch: Horovod's names, on CPU tensors.

``import hvdlite.torch as hvd`` is all that a script needs. Names are imported from where they are
defined when they are first used.
"""

import importlib

try:
    import torch  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"hvdlite's PyTorch names need PyTorch ({error}): run `pip install 'hvdlite[torch]'`"
    ) from error

import hvdlite

_OWN = {
    "hvdlite.torch.compression": ("Compression",),
    "hvdlite.torch.ddp": ("AllreduceState", "allreduce_hook"),
    "hvdlite.torch.handles": (
        "allgather_async",
        "allreduce_async",
        "allreduce_async_",
        "alltoall_async",
        "broadcast_async",
        "broadcast_async_",
        "grouped_allgather_async",
        "grouped_allreduce_async",
        "grouped_allreduce_async_",
        "grouped_reducescatter_async",
        "reducescatter_async",
    ),
    "hvdlite.torch.ops": (
        "allgather",
        "allreduce",
        "allreduce_",
        "alltoall",
        "broadcast",
        "broadcast_",
        "grouped_allgather",
        "grouped_allreduce",
        "grouped_allreduce_",
        "grouped_reducescatter",
        "join",
        "reducescatter",
    ),
    "hvdlite.torch.optimizer": ("DistributedOptimizer",),
    "hvdlite.torch.sparse": ("sparse_allreduce_async",),
    "hvdlite.torch.states": ("broadcast_optimizer_state", "broadcast_parameters"),
    "hvdlite.torch.sync_batch_norm": ("SyncBatchNorm",),
}
_MODULE_OF = {name: module for module, names in _OWN.items() for name in names}
# What has nothing to do with arrays, and so is hvdlite's own.
_SHARED = (
    "Adasum", "Average", "Handle", "HvdliteError", "Max", "Min", "ProcessSet", "Product", "Sum",
    "add_process_set", "allgather_object", "barrier", "broadcast_object", "ccl_built", "cross_rank",
    "cross_size", "cuda_built", "ddl_built", "global_process_set", "gloo_built", "gloo_enabled",
    "init", "is_homogeneous", "is_initialized", "local_rank", "local_size", "mpi_built",
    "mpi_enabled", "mpi_threads_supported", "nccl_built", "poll", "rank", "remove_process_set",
    "rocm_built", "run", "shutdown", "size", "start_timeline", "stats", "stop_timeline",
    "synchronize",
)  # fmt: skip

__all__ = [*_SHARED, *_MODULE_OF, "HorovodInternalError"]


def __getattr__(name):
    if name == "HorovodInternalError":  # as scripts of Horovod's catch it
        value = hvdlite.HvdliteError
    elif name in _MODULE_OF:
        value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    elif name in _SHARED:
        value = getattr(hvdlite, name)
    else:
        raise AttributeError(f"module 'hvdlite.torch' has no attribute '{name}'")
    globals()[name] = value  # and from now on found without a call
    return value


def __dir__():
    return sorted({*globals(), *__all__})
