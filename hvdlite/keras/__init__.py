"""hvdlite for Keras 3, on its backends TensorFlow, PyTorch and JAX: Horovod's names.

``import hvdlite.keras as hvd`` is all that a script needs. Names are imported from where they are
defined when they are first used.
"""

import importlib
import os

os.environ.setdefault("TF_NUM_INTEROP_THREADS", "32")  # hvdlite/tensorflow says why

try:
    import keras
except ImportError as error:
    raise ImportError(
        f"hvdlite's Keras names need Keras 3 ({error}): run `pip install 'hvdlite[keras]'`"
    ) from error

import hvdlite

if not keras.__version__.startswith("3"):
    raise ImportError(f"hvdlite's Keras names need Keras 3, not {keras.__version__}")

_OWN = {
    "hvdlite.keras.compression": ("Compression",),
    "hvdlite.keras.models": ("load_model",),
    "hvdlite.keras.ops": (
        "allgather",
        "allreduce",
        "broadcast",
        "broadcast_global_variables",
        "broadcast_variables",
        "reducescatter",
    ),
    "hvdlite.keras.optimizer": ("DistributedOptimizer", "PartialDistributedOptimizer"),
}
_MODULE_OF = {name: module for module, names in _OWN.items() for name in names}
# What has nothing to do with arrays, and so is hvdlite's own.
_SHARED = (
    "Adasum", "Average", "HvdliteError", "Max", "Min", "ProcessSet", "Product", "Sum",
    "add_process_set", "allgather_object", "barrier", "broadcast_object", "ccl_built", "cross_rank",
    "cross_size", "cuda_built", "ddl_built", "global_process_set", "gloo_built", "gloo_enabled",
    "init", "is_homogeneous", "is_initialized", "local_rank", "local_size", "mpi_built",
    "mpi_enabled", "mpi_threads_supported", "nccl_built", "rank", "remove_process_set",
    "rocm_built", "run", "shutdown", "size", "start_timeline", "stats", "stop_timeline",
)  # fmt: skip

__all__ = [*_SHARED, *_MODULE_OF, "callbacks"]


def __getattr__(name):
    if name in _MODULE_OF:
        value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    elif name in _SHARED:
        value = getattr(hvdlite, name)
    elif name == "callbacks":
        return importlib.import_module("hvdlite.keras.callbacks")
    else:
        raise AttributeError(f"module 'hvdlite.keras' has no attribute '{name}'")
    globals()[name] = value  # and from now on found without a call
    return value


def __dir__():
    return sorted({*globals(), *__all__})
