"""Memory that all ranks of a host map, so that collectives need not copy arrays in it."""

import ctypes
import mmap
from typing import Callable, NamedTuple, Optional

import numpy as np

from hvdlite.core import topology
from hvdlite.core.agreement import agree
from hvdlite.core.names import owner_name, owner_number
from hvdlite.core.native import call, ffi, lib, new_error
from hvdlite.core.objects import allgather_object

_CAPACITY = 1 << 34  # bytes of address space; a page takes no memory until it is written
_PAGE = 1 << 16  # bytes; a multiple of the size of small pages on every system
_ALIGNMENT = 64  # bytes of a cache line, and of the widest vector register


class SharedMemory:
    """A region of this rank's memory; after :func:`join` all ranks of the host map it.

    An in-place allreduce copies nothing if the array has the same offset in every rank's region. So
    all ranks must take the same sizes in the same order. The region is freed with its last array.
    """

    def __init__(self, region, capacity: int) -> None:
        self._region, self._capacity = region, capacity
        close = lib.hvd_region_close  # a local name, because `lib` may be gone at the process's end
        memory = ffi.gc(lib.hvd_region_memory(region), lambda _: close(region))
        self._bytes = np.frombuffer(ffi.buffer(memory, capacity), np.uint8)
        self.used = 0

    @classmethod
    def reserve(cls, nbytes: int = _CAPACITY) -> Optional["SharedMemory"]:
        """Return new memory; None before init(), or if ranks can't share memory. Not collective."""
        capacity = -(-(nbytes + _ALIGNMENT) // _PAGE) * _PAGE
        region = lib.hvd_region_create(capacity, new_error())
        return None if region == ffi.NULL else cls(region, capacity)

    def take(self, nbytes: int) -> Optional[np.ndarray]:
        """Return the next ``nbytes`` bytes, zeros; None if too few are left, or after :func:`join`.

        This rank writes the zeros before another rank maps the memory: so the pages are on this
        rank's NUMA node, and huge pages are possible.
        """
        start = self.used
        if self._region is None or nbytes > self._capacity - start - _ALIGNMENT:
            return None
        self.used += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        room = self._bytes[start : start + nbytes]
        room.fill(0)
        return room

    def _address(self) -> bytes:
        address = ffi.new("char[]", lib.HVD_REGION_ADDRESS)
        lib.hvd_region_address(self._region, self.used, address)
        return ffi.string(address)

    def _map(self, number: int, parts) -> bool:
        addresses = [ffi.new("char[]", address) for *_, address, _ in parts]
        used = [used for *_, used in parts]
        region, self._region = self._region, None
        return lib.hvd_region_join(region, number, addresses, used, new_error()) == lib.HVD_OK


def join(memory: Optional[SharedMemory], owner: str) -> bool:
    """Map the memory of the host's other ranks; return False if any rank fails. Collective."""
    number = 1 + owner_number("region")  # the region's number is the same on every rank
    host = own_host().number
    mine = memory and (host, topology.local_rank(), memory._address(), memory.used)
    parts = allgather_object(mine, f"region.{owner}")
    if memory is None or not all(parts):
        return False
    mapped = memory._map(number, sorted(part for part in parts if part[0] == host))
    return all(allgather_object(mapped, f"region.{owner}"))


def shared_bytes(nbytes: int, what: str) -> Optional[np.ndarray]:
    """Return memory for an array, or None if ranks can't share memory. Collective.

    The memory is freed with the last view of the array.

    :param what: a text with shape and dtype of the array, the same on every rank.
    :raises hvdlite.HvdliteError: shape or dtype differ between ranks.
    """
    owner = owner_name("array")
    # apart=True, so that this call meets no earlier call that another rank gave up after a timeout
    agree(owner, [what], remedy="Give the same shape and dtype on every rank.", apart=True)
    memory = SharedMemory.reserve(nbytes)
    room = memory.take(nbytes) if memory else None
    return room if join(memory, owner) else None


class HostMemory:
    """Memory that exists once on a host. Each rank maps it twice, as two arrays of bytes.

    All ranks see what one of them writes to ``shared``. ``view`` shows the same bytes, but when
    this rank writes to a page of ``view``, the page becomes private. The next collective on the
    page shares its bytes again. The memory is freed with the last array in it.

    :ivar handle: the ``hvd_memory *``; valid as long as one of the arrays exists.
    """

    def __init__(self, handle, nbytes: int) -> None:
        close = lib.hvd_memory_close  # a local name, because `lib` may be gone at the process's end
        self.handle = ffi.gc(handle, lambda memory: close(memory))
        self.shared = self._array(lib.hvd_memory_shared(handle), nbytes)
        self.view = self._array(lib.hvd_memory_view(handle), nbytes)

    def _array(self, address, nbytes: int) -> np.ndarray:
        alive = ffi.gc(address, lambda _, handle=self.handle: None)  # keeps the memory open
        return np.frombuffer(ffi.buffer(alive, nbytes), np.uint8)


class Host(NamedTuple):
    """This rank's host.

    :ivar leader: the lowest rank on the host.
    :ivar number: the host's number, from 0.
    :ivar hosts: the number of hosts of the job.
    """

    leader: int
    number: int
    hosts: int


def own_host() -> Host:
    found = [ffi.new("int *") for _ in Host._fields]
    call(lib.hvd_host, *found)
    return Host(*(each[0] for each in found))


def host_memory(
    nbytes: int, write_first: Callable, fill: Callable, owner: str
) -> Optional[HostMemory]:
    """Return memory that exists once on each host; None on all ranks if one fails. Collective.

    :param write_first: called on each rank with ``shared``; writes zeros to the pages that should
        be on the rank's NUMA node.
    :param fill: called with ``shared`` on each host's lowest rank, after every ``write_first``.
    """
    leader = own_host().leader
    leads = leader == topology.rank()
    made = _open_memory(nbytes, ffi.NULL) if leads else None
    addresses = allgather_object(made and _address_of(made), f"memory.{owner}")
    address = addresses[leader]
    if not leads and address:
        made = _open_memory(nbytes, ffi.new("char[]", address))
    if not all(allgather_object(made is not None, f"memory.{owner}")):
        return None
    assert made is not None
    write_first(made.shared)
    allgather_object(None, f"memory.{owner}")
    if leads:
        fill(made.shared)
        lib.hvd_memory_collapse(made.handle)
    allgather_object(None, f"memory.{owner}")
    made.shared[:: mmap.PAGESIZE].max(initial=0)  # the first read of a page is slow
    return made


def _open_memory(nbytes: int, address) -> Optional[HostMemory]:
    handle = lib.hvd_memory_open(nbytes, address, new_error())
    return None if handle == ffi.NULL else HostMemory(handle, nbytes)


def _address_of(memory: HostMemory) -> bytes:
    address = ffi.new("char[]", lib.HVD_REGION_ADDRESS)
    lib.hvd_memory_address(memory.handle, address)
    return ffi.string(address)


def trim_heap() -> None:
    """Give freed memory back to the system, because glibc would keep it for this process."""
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if give_back:
        give_back(0)
