"""Collectives on tensors of GPUs: hvdlite agrees on them, NCCL moves the data.

The C library compares a delegated tensor's name, kind, dtype, shape and op across ranks, as it does
for any tensor, and finds dead ranks. Then the tensor gets a turn, the same on every rank. NCCL
needs its calls in the same order on all ranks: a :class:`Mover` makes them in the order of turns.

Each rank of the process set needs a GPU of its own. Otherwise tensors go through the host.
"""

import contextlib
import math
import os
import socket
import threading
import time
from datetime import timedelta
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from hvdlite import job
from hvdlite.core import topology
from hvdlite.core.addresses import addresses_of_ranks
from hvdlite.core.collectives import Memory, Started
from hvdlite.core.log import logger
from hvdlite.core.native import call, ffi, lib
from hvdlite.core.objects import allgather_object
from hvdlite.core.process_set import ProcessSet, group_of
from hvdlite.torch.moves import OPS, Move, move_by
from hvdlite.torch.tensors import DTYPES

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_INTEGERS = (torch.uint8, torch.int8, torch.int32, torch.int64)
_LOOK = 0.1  # seconds between two looks at whether the job goes on
_FOUND = 2  # seconds in which hvdlite finds a dead rank
_LEAVING = 10  # seconds
_STORE_TIME = timedelta(seconds=60)
_FOR_EVER = timedelta(days=365)  # hvdlite finds dead ranks itself


def mover_for(tensors: Sequence, members: dict, process_set: ProcessSet) -> Optional["Mover"]:
    """Return what moves these tensors between GPUs; None: they go through the host.

    Collective for a set's first tensor on a GPU.

    :param members: of ``hvd_tensor``, equal on every rank.
    """
    kinds = {tensor.device.type for tensor in tensors}
    if len(kinds) != 1 or not kinds.issubset(GROUPS) or not _can_move(tensors, members):
        return None
    key = topology.job_number(), group_of(process_set), *kinds
    with _lock:
        agreement = _agreements.setdefault(key, _Agreement())
    mover = agreement.mover(tensors[0].device, process_set)
    others = [tensor.device for tensor in tensors if mover and tensor.device != mover.device]
    if mover is not None and others:
        raise ValueError(
            f"a tensor is on {others[0]}, and this rank's first one was on {mover.device}: "
            "keep all tensors of a process on one GPU, by torch.cuda.set_device(hvd.local_rank())"
        )
    return mover


def _can_move(tensors: Sequence, members: dict) -> bool:
    dtypes = {tensor.dtype for tensor in tensors}
    if "op" not in members:
        return dtypes.issubset((*_FLOATS, *_INTEGERS, torch.bool))
    scaled = (members["prescale"], members["postscale"]) != (1, 1)
    exact = not scaled and members["op"] != lib.HVD_AVERAGE  # else integers would be rounded
    known = (*_FLOATS, *_INTEGERS) if exact else _FLOATS
    return members["op"] in OPS and not members.get("codec") and dtypes.issubset(known)


# ---- what the ranks of a set agree on, once ----


class _Agreement:
    """Whether a set's ranks have a mover for a kind of device."""

    def __init__(self) -> None:
        self._lock, self._known = threading.Lock(), False
        self.made: Optional[Mover] = None

    def mover(self, device: torch.device, process_set: ProcessSet) -> Optional["Mover"]:
        with self._lock:
            if not self._known:
                self.made = _agree(device, process_set)
                self._known = True
        return self.made


_lock = threading.Lock()
_agreements: Dict[tuple, _Agreement] = {}  # by job, group and kind of device


def _agree(device: torch.device, process_set: ProcessSet) -> Optional["Mover"]:
    """Make the ranks' communicator; None: they have none. Collective over the set."""
    for key in [each for each in _agreements if each[0] != topology.job_number()]:
        _close(_agreements.pop(key))
    rank, size, name = process_set.rank(), process_set.size(), f"gpu.{device.type}"
    everyone = allgather_object((_why_host(device), _gpu_of(device)), name, process_set)
    reasons = [f"rank {r}: {why}" for r, (why, _) in zip(process_set.ranks, everyone) if why]
    if len({gpu for _, gpu in everyone}) < size:
        reasons.append("several ranks use one GPU, which NCCL refuses")
    if reasons:
        logger.info("tensors on %s go through the host: %s", device.type, reasons[0])
        return None
    return Mover(device, GROUPS[device.type](_store(rank, size, name, process_set), rank, size))


def _store(rank: int, size: int, name: str, process_set: ProcessSet) -> Any:
    """Return a new store of the ranks; the set's first rank serves it."""
    if size == 1:
        return dist.HashStore()
    address, store = addresses_of_ranks(process_set)[0], None
    if rank == 0:
        store = dist.TCPStore(address, 0, size, True, _STORE_TIME, False)
    port = allgather_object(store and store.port, name, process_set)[0]
    return store or dist.TCPStore(address, port, size, False, _STORE_TIME)


def _why_host(device: torch.device) -> str:
    """Return why this rank's tensors must go through the host; "": they need not."""
    if os.environ.get("HVDLITE_GPU", "").lower() == "host":
        return "HVDLITE_GPU=host is set"
    nccl = device.type != "cuda" or dist.is_nccl_available()
    return "" if nccl else "its PyTorch has no NCCL"


def _gpu_of(device: torch.device) -> str:
    """Return a name of the GPU that no other GPU of the job has; of a CPU: of this process."""
    if device.type != "cuda":
        return f"{socket.gethostname()} {os.getpid()}"
    known = torch.cuda.get_device_properties(device)
    return str(getattr(known, "uuid", f"{socket.gethostname()} {device.index}"))


def _nccl(store, rank: int, size: int) -> Any:
    """Return NCCL's group, which leaves failures to hvdlite instead of ending the process."""
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


# ---- moving ----


class Mover:
    """Moves tensors of one device among the ranks of a process set.

    :param group: a backend of ``torch.distributed`` of these ranks.
    """

    def __init__(self, device: torch.device, group) -> None:
        self.device, self._group = device, group
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._changed = threading.Condition(threading.RLock())  # guards:
        self._waiting: List[Move] = []  # for other ranks
        self._agreed: Dict[int, Move] = {}  # by turn
        self._turn = 1  # the next one
        self._moving: List[Move] = []  # keeps their memory
        self.failed: Optional[BaseException] = None
        threading.Thread(target=self._run, name="hvdlite gpu", daemon=True).start()

    def start(self, kind: int, names, tensors, outs, members: Sequence[dict]) -> "Delegated":
        """Start collectives; arguments as for ``Started``, with tensors in place of memory."""
        stream = self._stream and torch.cuda.current_stream(self.device)
        ready = stream and stream.record_event()
        shapes = [Memory(0, DTYPES[each.dtype], tuple(each.shape), None) for each in tensors]
        delegated = [{**each, "delegated": 1} for each in members]
        with self._changed:
            if self.failed:
                raise self.failed
            started = Started(kind, names, shapes, [None] * len(outs), delegated)
            moves = [
                Move(kind, handle, tensors[number], outs[number], members[number], ready)
                for number, handle in started.handles().items()
            ]
            self._waiting.extend(moves)
            self._changed.notify()
        return Delegated(self, started, moves)

    def launch(self) -> None:
        """Let the group begin what the ranks have agreed on, in the order of turns."""
        with self._changed:
            for move in [each for each in self._waiting if each.is_agreed()]:
                self._waiting.remove(move)
                turn = lib.hvd_turn(move.handle)
                if turn:  # 0: an error, which finish() raises
                    self._agreed[turn] = move
            while self._turn in self._agreed:
                move = self._agreed.pop(self._turn)
                self._turn += 1
                try:
                    self._begin(move)
                except Exception as error:
                    move.error = _cause_of(error)
                    self._fail(move.error)

    def _begin(self, move: Move) -> None:
        if self.failed:
            raise self.failed
        if self._stream is None:
            move_by(self._group, move)
            move.ended = True
            return
        with torch.cuda.device(self.device), torch.cuda.stream(self._stream):
            self._stream.wait_event(move.ready)
            move_by(self._group, move)
            move.ended = self._stream.record_event()
        self._moving.append(move)

    def finish(self, move: Move) -> torch.Tensor:
        """Wait until the group has moved the data; return the result, or raise the error."""
        while move.ended is None and move.error is None:
            self.launch()
        began = looked = time.monotonic()
        while not move.has_ended():
            now = time.monotonic()
            time.sleep(0 if now - began < 1e-3 else 5e-5)
            if now - looked > _LOOK:
                looked = now
                self.check()
        if move.error or self.failed:
            raise move.error or self.failed  # type: ignore[misc]
        assert move.out is not None
        if self._stream is not None:
            stream = torch.cuda.current_stream(self.device)
            stream.wait_event(move.ended)
            move.out.record_stream(stream)
        return move.out

    def check(self) -> None:
        """Raise if the job has failed; end the group's calls, which wait for dead ranks."""
        try:
            call(lib.hvd_check)
        except Exception as error:
            self._fail(error)
            raise

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            if self.failed:
                return
            self.failed = error
        self.close()

    def close(self) -> None:
        """End the group and its calls under way."""
        with contextlib.suppress(Exception):
            self._group.abort()

    def is_idle(self) -> bool:
        """Tell whether nothing waits or moves."""
        with self._changed:
            self._moving = [each for each in self._moving if not each.has_ended()]
            return not (self._waiting or self._agreed or self._moving)

    def _run(self) -> None:
        """Begin what no caller waits for; end the group's calls after a death."""
        while not self.failed:
            with self._changed:
                if self.is_idle():
                    self._changed.wait()
                first = self._waiting[0] if self._waiting else None
            if first is None:
                time.sleep(1e-3)
            else:
                lib.hvd_finish(first.handle, _LOOK, ffi.NULL)
            self.launch()
            with contextlib.suppress(Exception):
                self.check()


def _cause_of(error: Exception) -> Exception:
    """Return the death that the group's error tells of, if hvdlite finds one soon."""
    until = time.monotonic() + _FOUND
    while time.monotonic() < until:
        try:
            call(lib.hvd_check)
        except Exception as found:
            return found
        time.sleep(1e-2)
    return error


class Delegated:
    """Several collectives that a mover has started at once; like ``Started``."""

    def __init__(self, mover: Mover, started: Started, moves: List[Move]) -> None:
        self._mover, self._started, self._moves = mover, started, moves

    def done(self, seconds: float = 0) -> bool:
        """Tell whether all have ended; wait for the other ranks at most so many seconds."""
        if not self._started.done(seconds):
            return False
        self._mover.launch()
        return all(each.has_ended() or not lib.hvd_turn(each.handle) for each in self._moves)

    def finish(self) -> List[Tuple[torch.Tensor, Any]]:
        """Wait; return each result with its ``rows``.

        :raises hvdlite.HvdliteError: the ranks disagree, or one is dead.
        """
        self._started.finish()
        return [(self._mover.finish(each), each.rows) for each in self._moves]


def finish_all(seconds: float = math.inf) -> None:
    """Wait until no mover has work, at most so many seconds."""
    until = time.monotonic() + seconds
    for agreement in list(_agreements.values()):
        mover = agreement.made
        while mover and not (mover.failed or mover.is_idle() or time.monotonic() > until):
            mover.launch()
            time.sleep(1e-3)


def close_all() -> None:
    """End the groups of all movers."""
    while _agreements:
        _close(_agreements.popitem()[1])


def _close(agreement: _Agreement) -> None:
    if agreement.made:
        agreement.made.close()


def _leave() -> None:
    """Wait as this process leaves the job: other ranks may never submit some of its tensors."""
    finish_all(_LEAVING)


job.at_end(wait=finish_all, before=_leave, after=close_all)
