"""Memory that all ranks of a job map, when they are on one host: what lies in it needs no copy."""

from typing import Optional

import numpy as np

from hvdlite import context
from hvdlite._native import ffi, lib, new_error
from hvdlite.names import owner_number
from hvdlite.objects import allgather_object, broadcast_object


def shared_bytes(nbytes: int, owner: str) -> Optional[np.ndarray]:
    """Return this rank's part, ``nbytes`` of uint8, of a new region. Collective.

    None, on every rank, where ranks share no memory or there is no room for it. An allreduce in
    place of an array in it is direct if it lies at the same offset on every rank. The memory goes
    when the array and all arrays made from it are gone.
    """
    number = 1 + owner_number("region")  # the same on every rank: making a region is collective
    name, error = ffi.new("char[]", lib.HVD_REGION_NAME), new_error()
    leads = context.local_rank() == 0
    region = lib.hvd_region_create(number, nbytes, name, error) if leads else ffi.NULL
    shared_name = broadcast_object(ffi.string(name) if region else b"", 0, f"region.{owner}")
    if shared_name and not leads:
        region = lib.hvd_region_open(number, nbytes, shared_name, error)
    everywhere = all(allgather_object(region != ffi.NULL, f"region.{owner}"))
    if leads and region:
        lib.hvd_region_unlink(shared_name)
    if region and not everywhere:
        lib.hvd_region_close(region)
    if not everywhere:
        return None
    memory = ffi.gc(lib.hvd_region_memory(region), lambda _: lib.hvd_region_close(region), nbytes)
    return np.frombuffer(ffi.buffer(memory, nbytes), np.uint8)
