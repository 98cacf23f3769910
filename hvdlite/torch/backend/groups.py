"""Makes PyTorch's process groups from hvdlite's groups, and lets the ranks of a job meet."""

import itertools
import os
import time
from datetime import timedelta
from typing import Dict, Iterator, List, Tuple

import torch
import torch.distributed as dist

from hvdlite import job
from hvdlite.core import collectives, objects, topology
from hvdlite.core.addresses import addresses_of_ranks
from hvdlite.core.group_opening import open_among
from hvdlite.core.module_state import ModuleState
from hvdlite.core.native import call, failures_kept, lib
from hvdlite.torch.backend import compiled
from hvdlite.torch.tensors import empty_shared

LOOK = timedelta(seconds=0.5)


class _Groups(ModuleState):
    def begin(self) -> None:
        self.numbers = itertools.count()  # a new number for each group that this process leads
        self.begin_job()

    def begin_job(self) -> None:
        self.of_core: Dict[Tuple[int, ...], int] = {}  # ranks of a group -> its number in the core


_groups = _Groups()


def create(store: dist.Store, rank: int, size: int, timeout: timedelta):
    """Return the backend of a new process group; PyTorch calls this on each rank of the group.

    The first call joins the job, as ``hvdlite.init()`` does, unless the program has joined it.

    :raises hvdlite.HvdliteError: MPI does not know the other ranks.
    :raises RuntimeError: there is no compiler, or a rank is late.
    """
    glue = compiled.load(bucket)
    job.init()
    own_memory()
    members, number = _members(store, rank, size, timeout)
    group, seconds = _core_group(members, number), timeout.total_seconds()
    of_gloo = dist.PrefixStore(f"gloo/{number}", store)
    return glue.make(rank, size, group, f"torch.{number}", seconds, of_gloo, None)


def own_memory() -> None:
    """Let DistributedDataParallel get its buckets from this backend, if there is no GPU.

    With a GPU, ``DDP_DISABLE_COMM_MEM=0`` makes NCCL allocate memory, too.
    """
    if not torch.cuda.is_available():
        os.environ.setdefault("DDP_DISABLE_COMM_MEM", "0")


def _members(store, rank: int, size: int, timeout: timedelta) -> Tuple[List[int], int]:
    """Return the group's ranks, and a number that no other group with the same first rank has."""
    number = next(_groups.numbers) if rank == 0 else ""
    # number of groups that have used this store before, and whose keys are still in the store
    meeting = (store.add("hvdlite/meeting", 1) - 1) // size
    store.set(f"hvdlite/{meeting}/{rank}", f"{topology.rank()} {number}")
    keys = [f"hvdlite/{meeting}/{other}" for other in range(size)]
    _wait(store, keys, timeout)
    answers = [value.decode().split() for value in store.multi_get(keys)]
    return [int(fields[0]) for fields in answers], int(answers[0][1])


def _wait(store, keys: List[str], timeout: timedelta) -> None:
    """Wait for keys of the store; raise if the job fails, because the store sees no deaths."""
    until = time.monotonic() + timeout.total_seconds()
    while True:
        try:
            return store.wait(keys, min(timeout, LOOK))
        except RuntimeError as error:
            is_gone = isinstance(error, getattr(dist, "DistNetworkError", ()))
            # the store's server has ended; hvdlite needs a moment to find out which rank died
            time.sleep(LOOK.total_seconds() if is_gone else 0)
            call(lib.hvd_check)
            if is_gone or time.monotonic() >= until:
                raise


def _core_group(members: List[int], number: int) -> int:
    """Return the number of hvdlite's group of these ranks; open the group at the first call.

    Process groups with the same ranks share one group. The group stays open until the job ends,
    because the ranks may destroy a process group at different times.
    """
    if members == list(range(topology.size())):
        return 0
    if tuple(members) not in _groups.of_core:
        _groups.of_core[tuple(members)] = open_among(members, number)
    return _groups.of_core[tuple(members)]


@failures_kept()
def bucket(size: int, dtype: torch.dtype, seconds: float) -> torch.Tensor:
    """Return a tensor in memory that the ranks of a host share. Collective; waits for ``seconds``
    at most."""
    with collectives.limit_waits(seconds):
        return empty_shared(size, dtype)


def meet(url: str, timeout: timedelta, **unused) -> Iterator[Tuple[dist.Store, int, int]]:
    """Yield store, rank and size of the job, for ``init_method="hvdlite://"``."""
    job.init()
    rank, size = topology.rank(), topology.size()
    address = addresses_of_ranks()[0]
    store = dist.TCPStore(address, 0, size, True, timeout, False) if rank == 0 else None
    port = objects.broadcast_object(store and store.port, 0, "torch.port")
    yield store or dist.TCPStore(address, port, size, False, timeout), rank, size
    raise RuntimeError(
        "hvdlite:// can't be used for a second rendezvous: call init_process_group() once"
    )
