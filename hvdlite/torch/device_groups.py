"""Makes the groups of ``torch.distributed`` that move GPU tensors: one for each process set."""

import os
import socket
from datetime import timedelta
from typing import Any, Callable, Dict

import torch
import torch.distributed as dist

from hvdlite.core.addresses import addresses_of_ranks
from hvdlite.core.objects import allgather_object
from hvdlite.core.process_set import ProcessSet

_STORE_TIME = timedelta(seconds=60)  # time limit of one request to the store; chosen
_FOR_EVER = timedelta(days=365)  # no time-out, because hvdlite finds dead ranks itself


def new_store(rank: int, size: int, name: str, process_set: ProcessSet) -> Any:
    """Return a new store that all ranks of the set use; the set's first rank serves it."""
    if size == 1:
        return dist.HashStore()
    address, store = addresses_of_ranks(process_set)[0], None
    if rank == 0:
        store = dist.TCPStore(address, 0, size, True, _STORE_TIME, False)
    port = allgather_object(store and store.port, name, process_set)[0]
    return store or dist.TCPStore(address, port, size, False, _STORE_TIME)


def why_host(device: torch.device) -> str:
    """Return why this rank's tensors must go through the host; "" if they need not."""
    if os.environ.get("HVDLITE_GPU", "").lower() == "host":
        return "HVDLITE_GPU=host is set"
    nccl = device.type != "cuda" or dist.is_nccl_available()
    return "" if nccl else "its PyTorch has no NCCL"


def gpu_of(device: torch.device) -> str:
    """Return a name that is unique for this GPU in the job; for a CPU: unique for this process."""
    if device.type != "cuda":
        return f"{socket.gethostname()} {os.getpid()}"
    known = torch.cuda.get_device_properties(device)
    return str(getattr(known, "uuid", f"{socket.gethostname()} {device.index}"))


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


#: Makes the group that moves tensors, by the device's type. Tests add one for CPUs.
GROUPS: Dict[str, Callable[[Any, int, int], Any]] = {"cuda": _nccl}
