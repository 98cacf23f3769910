"""hvdlite for PyTorch: Horovod's names, for tensors on CPUs and NVIDIA's GPUs.

``import hvdlite.torch as hvd`` is all that a script needs. The first use of a name imports the
module that defines the name.
"""

try:
    import torch  # noqa: F401
except ImportError as error:
    raise ImportError(f"hvdlite.torch needs PyTorch ({error}): run `pip install torch`") from error

from hvdlite.core.lazy_names import NEUTRAL, lazy_names
from hvdlite.patches import after_import

_OTHERS = [name for name in NEUTRAL if name not in ("cuda_built", "nccl_built")]
_DEFINED_IN = {
    "hvdlite.torch.tensors": ("cuda_built", "empty_shared", "nccl_built"),
    "hvdlite.torch.compression": ("Compression",),
    "hvdlite.torch.ddp": ("AllreduceState", "allreduce_hook"),
    "hvdlite.torch.exchange": ("allreduce_plan",),
    "hvdlite.torch.ops": (
        "HorovodInternalError", "allgather", "allgather_async", "allreduce", "allreduce_",
        "allreduce_async", "allreduce_async_", "alltoall", "alltoall_async", "broadcast",
        "broadcast_", "broadcast_async", "broadcast_async_", "grouped_allgather",
        "grouped_allgather_async", "grouped_allreduce", "grouped_allreduce_",
        "grouped_allreduce_async", "grouped_allreduce_async_", "grouped_reducescatter",
        "grouped_reducescatter_async", "join", "reducescatter", "reducescatter_async",
    ),
    "hvdlite.torch.optimizer": ("DistributedOptimizer",),
    "hvdlite.torch.sparse": ("sparse_allreduce_async",),
    "hvdlite.torch.states": ("Guard", "broadcast_optimizer_state", "broadcast_parameters"),
    "hvdlite.torch.sync_batch_norm": ("SyncBatchNorm",),
    "hvdlite": (*_OTHERS, "Handle", "allgather_object", "broadcast_object", "poll", "synchronize"),
}  # fmt: skip

after_import.keep_from_torch_compile()
__all__ = [*(name for names in _DEFINED_IN.values() for name in names)]
__getattr__, __dir__ = lazy_names(globals(), _DEFINED_IN, {"elastic": "hvdlite.torch.elastic"})
