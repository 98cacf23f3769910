"""hvdlite for JAX: Horovod's names, and JAX's own collectives between processes.

Import hvdlite.jax before jax, and call ``hvd.init()`` before JAX's first computation.
"""

from hvdlite.core.lazy_names import NEUTRAL, lazy_names
from hvdlite.jax import library

library.choose()

_DEFINED_IN = {
    "hvdlite": (*NEUTRAL, "allgather_object", "broadcast_object"),
    "hvdlite.jax.ops": (
        "allgather", "allreduce", "alltoall", "broadcast", "broadcast_parameters", "reducescatter",
    ),
    "hvdlite.jax.optimizer": ("Compression", "DistributedOptimizer"),
    "hvdlite.jax.start": ("init", "shutdown"),  # these also join and leave JAX's own job
    "hvdlite.numpy": ("join",),
}  # fmt: skip

__all__ = [*dict.fromkeys(name for names in _DEFINED_IN.values() for name in names)]
_named, __dir__ = lazy_names(globals(), _DEFINED_IN, {})


def __getattr__(name):
    if name == "elastic":
        raise AttributeError(
            "hvdlite.jax has no elastic training: JAX can't join a second job in a process. Let "
            "the script save and load its state, and start it by `hvdliterun --restarts N`"
        )
    return _named(name)
