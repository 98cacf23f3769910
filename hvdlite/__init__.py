"""Data-parallel training over MPI or sockets.

``import hvdlite as hvd`` is all that a script needs. The first use of a name imports the module
that defines the name, so ``import hvdlite`` starts neither MPI nor MXNet. The launcher is a part of
this package, and must not become a process of the job by importing the package.
"""

import atexit
import contextlib
import importlib
import sys

from hvdlite.core.lazy_names import OPS, lazy_names
from hvdlite.exit import forks as _forks  # noqa: F401 - the import registers a fork handler
from hvdlite.exit import script_end as _script_end  # noqa: F401 - the import watches sys.exit
from hvdlite.patches import after_import, mxnet_import

__version__ = "0.1.0"

_DEFINED_IN = {
    "hvdlite.core.native": ("HvdliteError", "RankFailedError", "failure_of"),
    "hvdlite.core.build_queries": (
        "ccl_built", "cuda_built", "ddl_built", "gloo_built", "gloo_enabled", "mpi_built",
        "mpi_enabled", "mpi_threads_supported", "nccl_built", "rocm_built",
    ),
    "hvdlite.core.handles": ("Handle", "poll", "synchronize"),
    "hvdlite.launch.api": ("run",),
    "hvdlite.job": ("init", "shutdown"),
    "hvdlite.monitor.counts": ("start_timeline", "stats", "stop_timeline"),
    "hvdlite.mxnet.checkpoint": ("Checkpoint",),
    "hvdlite.mxnet.trainer": ("DistributedTrainer",),
    "hvdlite.mxnet.clipping": ("clip_global_norm",),
    "hvdlite.mxnet.compression": ("Compression",),
    "hvdlite.mxnet.data": ("DistributedRecordIter", "DistributedSampler"),
    "hvdlite.mxnet.learning_rates": ("LinearScaling",),
    "hvdlite.mxnet.evaluation": ("allreduce_metric",),
    "hvdlite.mxnet.handles": (
        "allgather_async", "allreduce_async", "allreduce_async_", "alltoall_async",
        "broadcast_async", "broadcast_async_", "grouped_allgather_async", "grouped_allreduce_async",
        "grouped_allreduce_async_", "grouped_reducescatter_async", "reducescatter_async",
    ),
    "hvdlite.mxnet.ops": (
        "allgather", "allreduce", "allreduce_", "alltoall", "broadcast", "broadcast_",
        "grouped_allgather", "grouped_allreduce", "grouped_allreduce_", "grouped_reducescatter",
        "reducescatter",
    ),
    "hvdlite.mxnet.optimizer": ("DistributedOptimizer",),
    "hvdlite.mxnet.parameters": ("Guard", "average_statistics", "broadcast_parameters"),
    "hvdlite.mxnet.sync_batch_norm": ("SyncBatchNorm",),
    "hvdlite.mxnet.states": ("broadcast_trainer_states",),
    "hvdlite.mxnet.sharded": ("ShardedTrainer",),
    "hvdlite.mxnet.zero_copy": ("share_gradients",),
    "hvdlite.numpy": ("barrier", "join"),
    "hvdlite.core.objects": ("allgather_object", "broadcast_object"),
    "hvdlite.core.process_set": ("ProcessSet", "global_process_set"),
    "hvdlite.core.registry": ("add_process_set", "remove_process_set"),
    "hvdlite.core.reduce_ops": OPS,
    "hvdlite.core.topology": (
        "cross_rank", "cross_size", "is_homogeneous", "is_initialized", "local_rank", "local_size",
        "rank", "size",
    ),
}  # fmt: skip
_SUBMODULES = {
    name: f"hvdlite.{name}"
    for name in ("elastic", "keras", "lightgbm", "mxnet", "numpy", "tensorflow", "xgboost")
}
# `hvdlite.kvstore` is MXNet's own module, to which hvdlite adds the store "dist_sync_mpi".
_SUBMODULES["kvstore"] = "mxnet.kvstore"

__all__ = ["__version__", *(name for names in _DEFINED_IN.values() for name in names)]
__getattr__, __dir__ = lazy_names(globals(), _DEFINED_IN, _SUBMODULES)


def _end() -> None:
    """At exit: tell ranks that wait in init() that this rank has ended, and finalize MPI."""
    could_join = {"mpi4py.MPI", "hvdlite.core.native"}.intersection(sys.modules)
    if could_join and "hvdlite.at_exit" not in sys.modules:
        with contextlib.suppress(ImportError):  # no C library for this MPI, so no job to leave
            importlib.import_module("hvdlite.at_exit").at_exit()
    if "hvdlite.bootstrap.mpi.bootstrap" in sys.modules:
        sys.modules["hvdlite.bootstrap.mpi.bootstrap"].end()
    if "hvdlite.mxnet.servers" in sys.modules:
        sys.modules["hvdlite.mxnet.servers"].end()


atexit.register(_end)
after_import.keep_mpi_from_children()
# when MXNet is imported, adapt it to new versions of NumPy, and add the kvstore "dist_sync_mpi"
mxnet_import.watch()
