"""PyTorch tensors as memory for the C library: checks and descriptions."""

from typing import Optional, Sequence

import torch

from hvdlite.core.collectives import DTYPE_CODES, Memory
from hvdlite.core.shared_memory import shared_bytes

DTYPES = {getattr(torch, name): code for name, code in DTYPE_CODES.items()}

DELEGATED = {"cuda"}  # types of devices whose tensors hvdlite.torch.delegate may move

# nested, masked and fake tensors, which check() refuses, override this method
_PLAIN_DISPATCH = torch.Tensor.__torch_dispatch__


def check(name: str, tensor, gpu: bool = False) -> None:
    """Raise ValueError for a tensor that no collective takes.

    :param gpu: True: the caller also takes tensors on a GPU (:func:`on_host`).
    """
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"tensor '{name}': expected a torch.Tensor, got {type(tensor).__name__}")
    if tensor.is_nested or type(tensor).__torch_dispatch__ is not _PLAIN_DISPATCH:
        raise ValueError(
            f"tensor '{name}' is "
            f"{'nested' if tensor.is_nested else f'a {type(tensor).__name__}'}, which has no "
            "plain memory for its values: pass a plain tensor, such as to_padded_tensor() of a "
            "nested tensor, get_data() of a masked tensor or to_local() of a DTensor"
        )
    if tensor.layout is not torch.strided:
        raise ValueError(
            f"tensor '{name}' is {tensor.layout}: expected a dense one; sparse_allreduce_async() "
            "takes sparse COO tensors, and tensor.to_dense() makes a dense one"
        )
    if not (tensor.is_cpu or (gpu and tensor.is_cuda)):
        raise ValueError(
            f"tensor '{name}' is on {tensor.device}: this call does not take tensors on this "
            "device: move the tensor to the CPU with tensor.cpu()"
        )
    if tensor.dtype not in DTYPES:
        known = ", ".join(str(dtype).replace("torch.", "") for dtype in DTYPES)
        raise ValueError(
            f"tensor '{name}': dtype {tensor.dtype} is not supported: expected one of {known}"
        )


def memory_of(tensor: torch.Tensor) -> Memory:
    """Return the description of the memory of a contiguous tensor."""
    return Memory(tensor.data_ptr(), DTYPES[tensor.dtype], tuple(tensor.shape), tensor)


def plain(tensor: torch.Tensor, stays: bool = False) -> torch.Tensor:
    """Return the tensor or a copy that is contiguous and, unless ``stays`` is True, on the host."""
    tensor = tensor.detach().contiguous().resolve_neg()
    return tensor if stays else on_host(tensor)


def written(tensors: Sequence[torch.Tensor]) -> None:
    """Tell autograd that these tensors were written to, as PyTorch's own operators do.

    If autograd has saved one of the tensors, backward then raises PyTorch's error.
    """
    if _TAKES_SEVERAL:
        torch._C._increment_version(tensors)
        return
    for tensor in tensors:
        if not tensor.is_inference():  # a tensor of inference mode has no version
            torch._C._increment_version(tensor)


def _takes_several() -> bool:
    """Return False for an old PyTorch, whose _increment_version() takes only one tensor."""
    try:
        torch._C._increment_version(())
    except (RuntimeError, TypeError):
        return False
    return True


# written() calls a private function, because torch.autograd.graph.increment_version() takes twice
# as long
_TAKES_SEVERAL = _takes_several()


def is_staged(tensor: torch.Tensor) -> bool:
    """Return True if the tensor is copied through the host's memory."""
    return tensor.is_cuda


def on_host(tensor: torch.Tensor, room: Optional[torch.Tensor] = None) -> torch.Tensor:
    """Return a CPU tensor itself, or a pinned copy of a GPU tensor, made on the current stream.

    :param room: an earlier copy, whose memory is reused if it fits.
    """
    if not is_staged(tensor):
        return tensor
    if room is None or (room.shape, room.dtype) != (tensor.shape, tensor.dtype):
        room = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
    return room.copy_(tensor)


def cuda_built() -> bool:
    """Return True if this PyTorch has CUDA."""
    return torch.version.cuda is not None


def nccl_built() -> int:
    """Return the version of this PyTorch's NCCL, such as 22803 for 2.28.3; 0: it has none."""
    if not cuda_built() or not torch.distributed.is_nccl_available():
        return 0
    major, minor, patch = torch.cuda.nccl.version()[:3]
    return 10000 * major + 100 * minor + patch


def empty_shared(shape, dtype: Optional[torch.dtype] = None) -> torch.Tensor:
    """Return a new tensor in memory that all ranks of the host map. Collective.

    In-place collectives, such as ``allreduce_``, copy nothing if every rank gives this tensor, or
    the same part of it. The memory is freed with the last tensor that uses it. If ranks share no
    memory, because each host has one rank or a new job has begun, the tensor is an ordinary tensor.

    :param shape: as for ``torch.empty``, like ``dtype``; the same on every rank.
    :raises hvdlite.HvdliteError: shape or dtype differ between ranks.
    """
    private = torch.empty(shape, dtype=dtype, device="cpu")
    check("empty_shared", private)
    memory = shared_bytes(private.nbytes, f"{tuple(private.shape)} {private.dtype}")
    if memory is None or not private.nbytes:
        return private
    return torch.from_numpy(memory).view(private.dtype).view(private.shape)


def is_packed(tensor: torch.Tensor) -> bool:
    """Return True if the elements have no gaps between them, in any order of the dimensions."""
    expected = 1
    for stride, length in sorted(zip(tensor.stride(), tensor.shape)):
        if length != 1 and stride != expected:
            return False
        expected *= length
    return True
