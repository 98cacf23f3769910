"""Collectives on tensors of GPUs: hvdlite negotiates them, NCCL moves the data.

The C library compares a delegated tensor's name, kind, dtype, shape and op across ranks, as for any
tensor, and finds dead ranks. Then it gives the tensor a turn, a number that is the same on every
rank. NCCL needs its calls in the same order on all ranks, so a :class:`Mover` makes the calls in
the order of turns. Each rank of the process set needs its own GPU; otherwise the tensors are copied
through the host.
"""

import math
import threading
import time
from typing import Dict, Optional, Sequence

import torch

from hvdlite import at_exit
from hvdlite.core import topology
from hvdlite.core.log import logger
from hvdlite.core.module_state import ModuleState
from hvdlite.core.native import lib
from hvdlite.core.objects import allgather_object
from hvdlite.core.process_set import ProcessSet, group_of
from hvdlite.torch.device_groups import GROUPS, gpu_of, new_store, why_host
from hvdlite.torch.mover import Mover
from hvdlite.torch.moves import OPS
from hvdlite.torch.tensors import DTYPES

_FLOATS = tuple(dtype for dtype in DTYPES if dtype.is_floating_point)
# PyTorch's backend for NCCL lacks the other integer dtypes.
_INTEGERS = (torch.uint8, torch.int8, torch.int32, torch.int64)
_LEAVING = 10  # seconds for which a process that leaves the job waits for its tensors


def mover_for(tensors: Sequence, members: dict, process_set: ProcessSet) -> Optional[Mover]:
    """Return the mover for these tensors; None: the tensors go through the host.

    Collective for a process set's first tensor on a GPU.

    :param members: members of ``hvd_tensor``, equal on every rank.
    """
    kinds = {tensor.device.type for tensor in tensors}
    if len(kinds) != 1 or not kinds.issubset(GROUPS) or not _can_move(tensors, members):
        return None
    key = topology.job_number(), group_of(process_set), *kinds
    with _agreements.lock:
        agreement = _agreements.made.setdefault(key, _Agreement())
    mover = agreement.mover(tensors[0].device, process_set)
    others = [tensor.device for tensor in tensors if mover and tensor.device != mover.device]
    if mover is not None and others:
        raise ValueError(
            f"a tensor is on {others[0]}, but this rank's first tensor was on {mover.device}: "
            "keep all tensors of a process on one GPU, by torch.cuda.set_device(hvd.local_rank())"
        )
    return mover


def _can_move(tensors: Sequence, members: dict) -> bool:
    dtypes = {tensor.dtype for tensor in tensors}
    if "op" not in members:
        return dtypes.issubset((*_FLOATS, *_INTEGERS, torch.bool))
    scaled = (members["prescale"], members["postscale"]) != (1, 1)
    # NCCL moves integers only for ops whose result needs no rounding
    exact = not scaled and members["op"] != lib.HVD_AVERAGE
    known = (*_FLOATS, *_INTEGERS) if exact else _FLOATS
    return members["op"] in OPS and not members.get("codec") and dtypes.issubset(known)


class _Agreement:
    """Records whether the ranks of a set have a mover for a kind of device."""

    def __init__(self) -> None:
        self._lock, self._known = threading.Lock(), False
        self.made: Optional[Mover] = None

    def mover(self, device: torch.device, process_set: ProcessSet) -> Optional[Mover]:
        with self._lock:
            if not self._known:
                self.made = _agree(device, process_set)
                self._known = True
        return self.made


class _Agreements(ModuleState):
    def begin(self) -> None:
        self.lock = threading.Lock()
        self.made: Dict[tuple, _Agreement] = {}  # agreements, by job, group and kind of device


_agreements = _Agreements()


def _agree(device: torch.device, process_set: ProcessSet) -> Optional[Mover]:
    """Return a new mover for the set's ranks; None: the ranks can have none. Collective."""
    for key in [each for each in _agreements.made if each[0] != topology.job_number()]:
        _close(_agreements.made.pop(key))
    rank, size, name = process_set.rank(), process_set.size(), f"gpu.{device.type}"
    everyone = allgather_object((why_host(device), gpu_of(device)), name, process_set)
    reasons = [f"rank {r}: {why}" for r, (why, _) in zip(process_set.ranks, everyone) if why]
    if len({gpu for _, gpu in everyone}) < size:
        reasons.append("several ranks use one GPU, which NCCL refuses")
    if reasons:
        if rank == 0:
            logger.warning("tensors on %s go through the host: %s", device.type, reasons[0])
        return None
    return Mover(device, GROUPS[device.type](new_store(rank, size, name, process_set), rank, size))


def finish_all(seconds: float = math.inf) -> None:
    """Wait until no mover has work, for at most ``seconds``."""
    until = time.monotonic() + seconds
    for agreement in list(_agreements.made.values()):
        mover = agreement.made
        while mover and not (mover.failed or mover.is_idle() or time.monotonic() > until):
            mover.launch()
            time.sleep(1e-3)


def close_all() -> None:
    """End the groups of all movers."""
    while _agreements.made:
        _close(_agreements.made.popitem()[1])


def _close(agreement: _Agreement) -> None:
    if agreement.made:
        agreement.made.close()


def _leave() -> None:
    """Wait before this process leaves the job, but not forever: other ranks may never submit some
    of its tensors."""
    finish_all(_LEAVING)


at_exit.at_end(wait=finish_all, before=_leave, after=close_all)
