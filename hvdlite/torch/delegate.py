"""Collectives on tensors of GPUs: hvdlite negotiates them, NCCL moves the data.

The C library compares a delegated tensor's name, kind, dtype, shape and op across ranks, as for any
tensor, and finds dead ranks. Then it gives the tensor a turn, a number that is the same on every
rank. NCCL needs its calls in the same order on all ranks, so a :class:`Mover` makes the calls in
the order of turns, one call for each batch. If NCCL refuses the ranks' GPUs, for example because
two ranks share a GPU, the tensors are copied through the host.
"""

import contextlib
import math
import os
import threading
import time
from typing import Dict, Optional, Sequence, Set

import torch

from hvdlite import at_exit
from hvdlite.core import topology
from hvdlite.core.collectives import Memory, Started
from hvdlite.core.log import logger
from hvdlite.core.module_state import ModuleState
from hvdlite.core.native import HvdliteError, lib
from hvdlite.core.objects import allgather_object
from hvdlite.core.process_set import ProcessSet, group_of
from hvdlite.torch.device_groups import GROUPS, Place, new_stores, why_host
from hvdlite.torch.mover import Mover
from hvdlite.torch.moves import OPS
from hvdlite.torch.tensors import DTYPES

_FLOATS = tuple(dtype for dtype in DTYPES if dtype.is_floating_point)
# PyTorch's backend for NCCL supports only these integer dtypes.
_INTEGERS = (torch.uint8, torch.int8, torch.int32, torch.int64)
_BRIEFLY = 0.01  # a waiting rank checks every so many seconds that no rank has failed
_LEAVING = 10  # seconds for which a process waits for its tensors before it leaves the job


def mover_for(
    names: Sequence[str], tensors: Sequence, members: dict, process_set: ProcessSet
) -> Optional[Mover]:
    """Return the :class:`Mover` for these tensors; None: the tensors go through the host.

    The first call with a tensor on a GPU is collective, even if the ranks of the process set make
    different calls: hvdlite then compares the calls.

    :param tensors: the first tensor is on a device of ``GROUPS``.
    :param members: members of ``hvd_tensor``, equal on every rank.
    :raises hvdlite.HvdliteError: on every rank, if some rank has a tensor of these names on the
        host.
    """
    if os.environ.get("HVDLITE_GPU", "").lower() == "host":
        return None
    key = topology.job_number(), group_of(process_set), tensors[0].device.type
    with _agreements.lock:
        agreement = _agreements.made.setdefault(key, _Agreement())
    mover = agreement.mover(names, tensors[0].device, process_set)
    kinds = {tensor.device.type for tensor in tensors}
    if mover is None or len(kinds) != 1 or not _can_move(tensors, members):
        return None
    others = [(n, t.device) for n, t in zip(names, tensors) if t.device != mover.device]
    for name, device in others[:1]:
        raise ValueError(
            f"tensor '{name}' is on {device}, but this rank's first tensor was on {mover.device}: "
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
    """Records whether a process set has a :class:`Mover` (NCCL) for a kind of device."""

    def __init__(self) -> None:
        self._lock, self._known = threading.Lock(), False
        self._all: Optional[Started] = None  # check that ends when all ranks have begun it
        self.made: Optional[Mover] = None

    def mover(self, names, device: torch.device, process_set: ProcessSet) -> Optional[Mover]:
        with self._lock:
            if not self._known:
                self._await_all(names, device, process_set)
                self.made = _agree(device, process_set)
                self._known = True
        return self.made

    def _await_all(self, names, device: torch.device, process_set: ProcessSet) -> None:
        """Wait until every rank has called a collective with a tensor on a GPU.

        :raises HvdliteError: a rank has a tensor with one of these names on the host.
        """
        asked = [_ask([name], process_set) for name in names]
        if self._all is None or (self._all.done() and _has_failed(self._all)):
            self._all = _ask([f"gpu.{device.type}.first"], process_set)
        ended = False
        while not ended:
            ended = self._all.done(_BRIEFLY)
            for each in asked:
                if each.done():
                    each.finish()
        self._all.finish()
        # The check of a name ends when all ranks have begun it, so check the other ranks' names.
        of_ranks = allgather_object(list(names), f"gpu.{device.type}.names", process_set)
        others = set().union(*of_ranks).difference(names)
        with contextlib.suppress(HvdliteError):  # this rank may have a tensor with such a name
            _ask(sorted(others), process_set).finish()
        for each in asked:
            _has_failed(each)


def _ask(names: Sequence[str], process_set: ProcessSet) -> Started:
    """Begin to check that no rank has a tensor of these names on the host. Moves no data."""
    count, nothing = len(names), Memory(0, DTYPES[torch.uint8], (), None)
    members = {"delegated": lib.HVD_ASKS, "group": group_of(process_set)}
    return Started(lib.HVD_ALLREDUCE, names, [nothing] * count, [None] * count, [members] * count)


def _has_failed(started: Started) -> bool:
    try:
        started.finish()
    except HvdliteError:
        return True
    return False


class _Agreements(ModuleState):
    def begin(self) -> None:
        self.lock = threading.Lock()
        self.made: Dict[tuple, _Agreement] = {}  # agreements, by job, group and kind of device
        self.told: Set[str] = set()  # logged reasons for which tensors go through the host


_agreements = _Agreements()


def _agree(device: torch.device, process_set: ProcessSet) -> Optional[Mover]:
    """Return a new Mover for the set's ranks; None: NCCL can't move their tensors. Collective."""
    for key in [each for each in _agreements.made if each[0] != topology.job_number()]:
        _close(_agreements.made.pop(key))
    rank, size, name = process_set.rank(), process_set.size(), f"gpu.{device.type}"
    places = allgather_object(Place.of(device), name, process_set)
    reason = why_host(dict(zip(process_set.ranks, places)))
    if not reason:
        store, own = new_stores(rank, size, name, process_set)
        mover = Mover(device, GROUPS[device.type](store, rank, size), own)
        try:
            refusals = allgather_object(mover.try_out(), f"{name}.refusals", process_set)
        except BaseException as error:
            mover.close(error)  # not end(), which waits: the launcher may end this process first
            raise
        reason = next((f"NCCL refuses: {each}" for each in refusals if each), "")
        if not reason:
            mover.run()
            return mover
        mover.end()
    if rank == 0 and reason not in _agreements.told:
        _agreements.told.add(reason)
        text = "tensors on %s go through memory of the host, because %s"
        logger.warning(text, device.type, reason)
    return None


def finish_all(seconds: float = math.inf) -> None:
    """Wait until NCCL has moved all tensors, for at most ``seconds``."""
    until = time.monotonic() + seconds
    for agreement in list(_agreements.made.values()):
        mover = agreement.made
        while mover and not (mover.failed or mover.is_idle() or time.monotonic() > until):
            mover.launch()
            with contextlib.suppress(Exception):  # an error also ends the loop, by mover.failed
                mover.check()
            time.sleep(1e-3)


def close_all() -> None:
    """End the groups of all Movers."""
    while _agreements.made:
        _close(_agreements.made.popitem()[1])


def _close(agreement: _Agreement) -> None:
    if agreement.made:
        agreement.made.end()


def _leave() -> None:
    """Wait for this process's tensors before it leaves the job, but not forever, because other
    ranks may never submit some of these tensors."""
    finish_all(_LEAVING)


at_exit.at_end(wait=finish_all, before=_leave, after=close_all)
