"""hvdlite for TensorFlow: Horovod's names, eagerly, inside ``tf.function`` and in sessions.

``import hvdlite.tensorflow as hvd`` is all that a script needs. Names are imported from where they
are defined when they are first used.
"""

import importlib
import os

# A collective that is waited for holds one of TensorFlow's threads: there must be one left for
# those that other ranks wait for. Read when TensorFlow makes its threads, at its first operation.
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "32")

try:
    import tensorflow  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"hvdlite's TensorFlow names need TensorFlow ({error}): run "
        "`pip install 'hvdlite[tensorflow]'`"
    ) from error

import hvdlite

_OWN = {
    "hvdlite.tensorflow.compression": ("Compression",),
    "hvdlite.tensorflow.objects": (
        "allgather_object",
        "broadcast_object",
        "broadcast_object_fn",
    ),
    "hvdlite.tensorflow.ops": (
        "allgather",
        "allreduce",
        "alltoall",
        "broadcast",
        "grouped_allgather",
        "grouped_allreduce",
        "grouped_reducescatter",
        "join",
        "reducescatter",
    ),
    "hvdlite.tensorflow.optimizer": ("DistributedOptimizer",),
    "hvdlite.tensorflow.queries": (
        "local_rank_op",
        "local_size_op",
        "process_set_included_op",
        "rank_op",
        "size_op",
    ),
    "hvdlite.tensorflow.sync_batch_norm": ("SyncBatchNormalization",),
    "hvdlite.tensorflow.tape": ("DistributedGradientTape", "PartialDistributedGradientTape"),
    "hvdlite.tensorflow.variables": (
        "BroadcastGlobalVariablesHook",
        "broadcast_",
        "broadcast_global_variables",
        "broadcast_variables",
    ),
}
_MODULE_OF = {name: module for module, names in _OWN.items() for name in names}
# What has nothing to do with arrays, and so is hvdlite's own.
_SHARED = (
    "Adasum", "Average", "HvdliteError", "Max", "Min", "ProcessSet", "Product", "Sum",
    "add_process_set", "barrier", "ccl_built", "cross_rank", "cross_size", "cuda_built",
    "ddl_built", "global_process_set", "gloo_built", "gloo_enabled", "init", "is_homogeneous",
    "is_initialized", "local_rank", "local_size", "mpi_built", "mpi_enabled",
    "mpi_threads_supported", "nccl_built", "rank", "remove_process_set", "rocm_built", "run",
    "shutdown", "size", "start_timeline", "stats", "stop_timeline",
)  # fmt: skip

__all__ = [*_SHARED, *_MODULE_OF]


def __getattr__(name):
    if name in _MODULE_OF:
        value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    elif name in _SHARED:
        value = getattr(hvdlite, name)
    elif name == "keras":
        return importlib.import_module("hvdlite.tensorflow.keras")
    else:
        raise AttributeError(f"module 'hvdlite.tensorflow' has no attribute '{name}'")
    globals()[name] = value  # and from now on found without a call
    return value


def __dir__():
    return sorted({*globals(), *__all__})
