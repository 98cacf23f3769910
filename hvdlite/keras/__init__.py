"""hvdlite for Keras 3 on TensorFlow, PyTorch or JAX; the names are Horovod's.

A script needs only ``import hvdlite.keras as hvd``. The first use of a name imports the module that
defines the name.
"""

import os

# as in hvdlite/tensorflow/__init__.py: enough threads, because some wait for other ranks
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "32")

try:
    import keras
except ImportError as error:
    if error.name == "keras":
        todo = "run `pip install keras`"
    else:
        todo = f"run `pip install {error.name}`, or choose a backend: KERAS_BACKEND=torch"
    raise ImportError(f"hvdlite.keras needs Keras 3 ({error}): {todo}") from error

from hvdlite.core.lazy_names import NEUTRAL, lazy_names

if keras.__version__[:2] in ("0.", "1.", "2."):
    raise ImportError(
        f"hvdlite.keras needs Keras 3, but this is Keras {keras.__version__}: "
        "run `pip install --upgrade keras`"
    )

_DEFINED_IN = {
    "hvdlite.keras.ops": (
        "Compression", "allgather", "allreduce", "broadcast", "broadcast_global_variables",
        "broadcast_variables", "reducescatter",
    ),
    "hvdlite.keras.optimizer": (
        "DistributedOptimizer", "PartialDistributedOptimizer", "load_model",
    ),
    "hvdlite": (*NEUTRAL, "allgather_object", "broadcast_object"),
}  # fmt: skip

_MODULES = {each: f"hvdlite.keras.{each}" for each in ("callbacks", "elastic")}
__all__ = [*(name for names in _DEFINED_IN.values() for name in names), *_MODULES]
__getattr__, __dir__ = lazy_names(globals(), _DEFINED_IN, _MODULES)
