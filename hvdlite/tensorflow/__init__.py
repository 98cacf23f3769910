"""hvdlite for TensorFlow, with Horovod's names: for eager mode, ``tf.function`` and sessions.

A script needs only ``import hvdlite.tensorflow as hvd``. The first use of a name imports the module
that defines the name.
"""

import os

# A node that waits for a collective blocks one of TensorFlow's threads. If such nodes blocked all
# threads, this rank could not start the collectives for which other ranks wait. TensorFlow reads
# this variable when it makes its threads, at its first operation.
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "32")

try:
    import tensorflow  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"hvdlite.tensorflow needs TensorFlow ({error}): run `pip install tensorflow`"
    ) from error

from hvdlite.core.lazy_names import NEUTRAL, lazy_names

_DEFINED_IN = {
    "hvdlite.tensorflow.queries": (
        "local_rank_op", "local_size_op", "process_set_included_op", "rank_op", "size_op",
    ),
    "hvdlite.tensorflow.variables": (
        "BroadcastGlobalVariablesHook", "allgather_object", "broadcast_",
        "broadcast_global_variables", "broadcast_object", "broadcast_object_fn",
        "broadcast_variables",
    ),
    "hvdlite.tensorflow.ops": (
        "Compression", "allgather", "allreduce", "alltoall", "broadcast", "grouped_allgather",
        "grouped_allreduce", "grouped_reducescatter", "join", "reducescatter",
    ),
    "hvdlite.tensorflow.tape": (
        "DistributedGradientTape", "DistributedOptimizer", "PartialDistributedGradientTape",
    ),
    "hvdlite.tensorflow.sync_batch_norm": ("SyncBatchNormalization",),
    "hvdlite": NEUTRAL,
}  # fmt: skip

__all__ = [*(name for names in _DEFINED_IN.values() for name in names)]
_MODULES = {each: f"hvdlite.tensorflow.{each}" for each in ("elastic", "keras")}
__getattr__, __dir__ = lazy_names(globals(), _DEFINED_IN, _MODULES)
