"""Makes the groups of ``torch.distributed`` that move GPU tensors: one for each process set."""

import functools
import os
import socket
from datetime import timedelta
from typing import Any, Callable, Dict, NamedTuple, Tuple

import torch
import torch.distributed as dist

from hvdlite.core.addresses import addresses_of_ranks
from hvdlite.core.objects import allgather_object
from hvdlite.core.process_set import ProcessSet

_STORE_TIME = timedelta(seconds=60)  # time limit of one request to the store
_FOR_EVER = timedelta(days=365)  # no time-out, because hvdlite finds dead ranks itself


def new_stores(rank: int, size: int, name: str, process_set: ProcessSet) -> Tuple[Any, Any]:
    """Return two connections to a new store; the set's first rank serves it.

    While a thread waits for a key, no other thread can use the same connection.
    """
    if size == 1:
        return dist.HashStore(), dist.HashStore()
    address, store = addresses_of_ranks(process_set)[0], None
    if rank == 0:
        store = dist.TCPStore(address, 0, None, True, _STORE_TIME, False)
    port = allgather_object(store and store.port, name, process_set)[0]
    connect = functools.partial(dist.TCPStore, address, port, None, False, _STORE_TIME, False)
    return store or connect(), connect()


# NCCL's guide, "NCCL_MULTI_RANK_GPU_ENABLE (since 2.30) (experimental)": 1 lets several ranks use
# one GPU. Older versions refuse this, and so do newer versions by default.
_SHARING_SINCE = 2, 30
_SHARES = "NCCL_MULTI_RANK_GPU_ENABLE"


class Place(NamedTuple):
    """What decides whether NCCL can move one rank's tensors."""

    gpu: str  # identifies the GPU among all GPUs of the job; for a CPU, identifies the process
    nccl: Tuple[int, ...]  # NCCL's version; (): this PyTorch has no NCCL
    may_share: bool  # True: the environment lets NCCL use one GPU for several ranks

    @classmethod
    def of(cls, device: torch.device) -> "Place":
        """Return the Place of this rank, whose tensors are on ``device``."""
        may_share = os.environ.get(_SHARES, "").strip() not in ("", "0")
        return cls(_gpu_of(device), _nccl_version(device), may_share)


def _gpu_of(device: torch.device) -> str:
    if device.type != "cuda":
        return f"{socket.gethostname()} {os.getpid()}"
    known = torch.cuda.get_device_properties(device)
    return str(getattr(known, "uuid", f"{socket.gethostname()} {device.index}"))


def _nccl_version(device: torch.device) -> Tuple[int, ...]:
    """Return the version of the NCCL that is loaded, which may be newer than PyTorch's own."""
    if device.type != "cuda":
        return _SHARING_SINCE
    if not dist.is_nccl_available():
        return ()
    loaded = getattr(dist.ProcessGroupNCCL, "get_runtime_nccl_version", torch.cuda.nccl.version)
    return tuple(loaded()[:3])


def why_host(places: Dict[int, Place]) -> str:
    """Return why the ranks' tensors must go through the host; "" if they need not."""
    without = [rank for rank, place in places.items() if not place.nccl]
    alike = [[r for r, other in places.items() if other.gpu == p.gpu] for p in places.values()]
    sharing = next((ranks for ranks in alike if len(ranks) > 1), [])
    oldest = min(place.nccl for place in places.values())
    if without:
        return f"rank {without[0]}: its PyTorch has no NCCL"
    if not sharing or all(p.may_share and p.nccl >= _SHARING_SINCE for p in places.values()):
        return ""
    version = ".".join(map(str, oldest))
    hint = f"; {_SHARES}=1 allows it" if oldest >= _SHARING_SINCE else ""
    return f"ranks {sharing[0]} and {sharing[1]} share a GPU, which NCCL {version} refuses{hint}"


def _nccl(store, rank: int, size: int) -> Any:
    """Return a group of NCCL that leaves failures to hvdlite instead of ending the process."""
    name = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
    before = os.environ.get(name)
    os.environ[name] = "0"
    try:
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = _FOR_EVER
        return dist.ProcessGroupNCCL(store, rank, size, options)
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


#: For each type of device the function that makes a group. Tests add a function for CPUs.
GROUPS: Dict[str, Callable[[Any, int, int], Any]] = {"cuda": _nccl}
