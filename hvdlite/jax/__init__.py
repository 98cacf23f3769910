"""hvdlite for JAX: the collectives of its programs on several processes, and Horovod's names.

``import hvdlite.jax as hvd`` comes before ``import jax``, and ``hvd.init()`` before JAX's first
computation. Names are imported from where they are defined when they are first used.
"""

from hvdlite.core.lazy_names import NEUTRAL, lazy_names
from hvdlite.jax import library

library.choose()

_DEFINED_IN = {
    "hvdlite.jax.ops": (
        "allgather", "allreduce", "alltoall", "broadcast", "broadcast_parameters", "reducescatter",
    ),
    "hvdlite.jax.optimizer": ("Compression", "DistributedOptimizer"),
    "hvdlite.jax.start": ("init", "shutdown"),
    "hvdlite.numpy": ("join",),
    "hvdlite": (
        *(name for name in NEUTRAL if name not in ("init", "shutdown")),
        "allgather_object", "broadcast_object",
    ),
}  # fmt: skip

__all__ = [name for names in _DEFINED_IN.values() for name in names]
_named, __dir__ = lazy_names(globals(), _DEFINED_IN, {})


def __getattr__(name):
    if name == "elastic":
        raise AttributeError(
            "hvdlite.jax has no elastic training, because JAX can't join a second job in a process:"
            " save the state at intervals and load it at the start of the script, and start it by "
            "`hvdliterun --restarts N`"
        )
    return _named(name)
