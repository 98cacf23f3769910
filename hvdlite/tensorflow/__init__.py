"""hvdlite for TensorFlow: Horovod's names, eagerly, inside ``tf.function`` and in sessions.

``import hvdlite.tensorflow as hvd`` is all that a script needs. Names are imported from where they
are defined when they are first used.
"""

import os

# A wait for a collective occupies one of TensorFlow's threads, and threads must be left for the
# collectives that other ranks wait for. TensorFlow reads this when it makes its threads, at its
# first operation.
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "32")

try:
    import tensorflow  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"hvdlite.tensorflow needs TensorFlow ({error}): run `pip install tensorflow`"
    ) from error

from hvdlite.core.lazy_names import NEUTRAL, lazy_names

_DEFINED_IN = {
    "hvdlite.tensorflow.compression": ("Compression",),
    "hvdlite.tensorflow.variables": (
        "BroadcastGlobalVariablesHook", "allgather_object", "broadcast_",
        "broadcast_global_variables", "broadcast_object", "broadcast_object_fn",
        "broadcast_variables", "local_rank_op", "local_size_op", "process_set_included_op",
        "rank_op", "size_op",
    ),
    "hvdlite.tensorflow.ops": (
        "allgather", "allreduce", "alltoall", "broadcast", "grouped_allgather", "grouped_allreduce",
        "grouped_reducescatter", "join", "reducescatter",
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
