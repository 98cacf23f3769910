"""Moves GPU tensors between ranks in the order of their turns: numbers equal on all ranks."""

import contextlib
import json
import math
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from hvdlite.core import topology
from hvdlite.core.collectives import Memory, Started
from hvdlite.core.error_text import error_text
from hvdlite.core.native import FAILED, HvdliteError, call, ffi, lib
from hvdlite.torch.moves import Move, move_by
from hvdlite.torch.tensors import DTYPES

_LOOK = 0.1  # seconds between two checks that the job has not failed
_ASK = 1.0  # seconds between two checks of the store for another rank's error
_FOUND = 2  # seconds to wait for hvdlite to find a dead rank, or for a thread to end
# Seconds for the group's first call, in which NCCL connects all GPUs. Chosen, not measured: with a
# shorter time, a large job that starts slowly would go through the host.
FIRST_CALL_SECONDS = 120.0
_FAILURE = "hvdlite.failure"  # key of the store


class Mover:
    """Moves tensors of one device among the ranks of a process set.

    A call of ``group`` may block, for example while another rank is dead, so the thread that makes
    the call does not hold the lock ``_changed``.

    :param group: a backend of ``torch.distributed`` for these ranks.
    :param store: a store of these ranks, in which a rank tells the others that its call failed.
    """

    def __init__(self, device: torch.device, group, store) -> None:
        self.device, self._group, self._store = device, group, store
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        # held by the thread that makes the group's calls; guards _turn
        self._calls = threading.RLock()
        self._turn = 1  # number of the next transfer in the order that all ranks follow
        self._changed = threading.Condition(threading.RLock())  # guards the fields below
        self._waiting: List[Move] = []  # tensors that some rank has not submitted yet
        self._agreed: Dict[int, Move] = {}  # tensors that all ranks have submitted, by turn
        self._moving: List[Move] = []  # NCCL works on these; the list keeps their memory
        self.failed: Optional[BaseException] = None
        self._closed = threading.Event()
        # Two threads, because NCCL's abort may wait for a blocked call, and the store may wait for
        # a lost host. They start now, because no thread can start while Python ends.
        self._threads = [_started(self._abort), _started(self._watch_store)]

    def run(self) -> None:
        """Start a thread that makes the calls for which no caller waits."""
        self._threads.append(_started(self._run))

    def try_out(self) -> str:
        """Sum a number over the ranks; return the text of the group's error, or "".

        NCCL makes its communicator in the first call, and may refuse GPUs that hvdlite accepts. The
        call may block forever, and no abort ends it, if another rank is dead, or NCCL fails there,
        or a firewall drops NCCL's messages. So a separate thread makes the call.

        :raises hvdlite.HvdliteError: the job has failed.
        """
        one = torch.ones(1, device=self.device)
        members = {"op": lib.HVD_SUM, "prescale": 1.0, "postscale": 1.0}
        move = Move("the first tensor", lib.HVD_ALLREDUCE, None, one, one, members, self._ready())
        self._threads.append(_started(self._call, [move]))
        try:
            self.finish(move, FIRST_CALL_SECONDS)
        except Exception as error:
            call(lib.hvd_check)
            return str(error)
        return ""

    def _ready(self) -> Any:
        """Return a CUDA event that follows all work of the caller's stream; None for a CPU."""
        return self._stream and torch.cuda.current_stream(self.device).record_event()

    def start(self, kind: int, names, tensors, outs, members: Sequence[dict]) -> "Delegated":
        """Start collectives; arguments as for ``Started``, with tensors in place of memory."""
        ready = self._ready()
        shapes = [Memory(0, DTYPES[each.dtype], tuple(each.shape), None) for each in tensors]
        delegated = [{**each, "delegated": 1} for each in members]
        with self._changed:
            if self.failed:
                raise self.failed
            started = Started(kind, names, shapes, [None] * len(outs), delegated)
            moves = [
                Move(names[i], kind, handle, tensors[i], outs[i], members[i], ready)
                for i, handle in started.handles().items()
            ]
            self._waiting.extend(moves)
            self._changed.notify()
        return Delegated(self, started, moves)

    def launch(self) -> None:
        """Start to move the tensors that all ranks have submitted, in the same order on each rank.

        While another thread calls the group, do nothing, because its call may block forever.
        """
        if not self._calls.acquire(timeout=1e-3):
            return
        try:
            batch = self._next_batch()
            while batch:
                self._call(batch)
                batch = self._next_batch()
        finally:
            self._calls.release()

    def _next_batch(self) -> List[Move]:
        """Return the tensors of the next batch; []: some rank has not submitted all of them."""
        with self._changed:
            for move in [each for each in self._waiting if each.is_agreed()]:
                self._waiting.remove(move)
                turn = lib.hvd_turn(move.handle)
                if turn:  # 0: the ranks disagree on the tensor, and finish() raises the error
                    self._agreed[turn] = move
            first = self._agreed.get(self._turn)
            turns = range(self._turn, lib.hvd_last_turn(first.handle) + 1) if first else ()
            if not all(turn in self._agreed for turn in turns):
                return []
            batch = [self._agreed.pop(turn) for turn in turns]
            self._moving.extend(batch)
        self._turn += len(batch)
        return batch

    def _call(self, batch: List[Move]) -> None:
        try:
            if self.failed:
                raise self.failed
            self._begin(batch)
        except BaseException as error:  # Ctrl-C, too, because other ranks wait for this call
            cause = self.failed or self._cause_of(error, batch)
            for move in batch:
                move.error = cause
            self.close(cause)
            if not isinstance(error, Exception):
                raise

    def _begin(self, batch: List[Move]) -> None:
        if self._stream is None:
            move_by(self._group, batch)
            ended = True
        else:
            with torch.cuda.device(self.device), torch.cuda.stream(self._stream):
                for move in batch:
                    self._stream.wait_event(move.ready)
                move_by(self._group, batch)
                ended = self._stream.record_event()
        for move in batch:
            move.ended = ended

    def finish(self, move: Move, limit: float = math.inf) -> torch.Tensor:
        """Wait until the group has moved the data; return the result, or raise the error."""
        began = looked = time.monotonic()
        while not (move.has_ended() or self.failed):
            if move.ended is None:
                self.launch()
            now = time.monotonic()
            time.sleep(0 if now - began < 1e-3 else 5e-5)
            if now - looked > _LOOK:
                looked = now
                self.check()
            if now - began > limit:
                raise TimeoutError(
                    f"its first call has not ended after {limit:.0f} s; NCCL_DEBUG=INFO shows what "
                    "it waits for, NCCL_SOCKET_IFNAME chooses its network interface"
                )
        if move.error or self.failed:
            raise move.error or self.failed  # type: ignore[misc]
        assert move.out is not None
        if self._stream is not None:
            stream = torch.cuda.current_stream(self.device)
            stream.wait_event(move.ended)
            move.out.record_stream(stream)
        return move.out

    def check(self) -> None:
        """If the job has failed, abort the group's calls, which may wait for dead ranks; raise."""
        try:
            call(lib.hvd_check)
        except Exception as error:
            self.close(error)
            raise

    def _watch_store(self) -> None:
        while not self._closed.wait(_ASK):
            try:
                self._look_into_store()
            except HvdliteError as error:
                self.close(error)
            except Exception:  # the rank that serves the store has ended
                return

    def _look_into_store(self) -> None:
        if self._store.check([_FAILURE]):
            rank, text = json.loads(self._store.get(_FAILURE))
            raise HvdliteError(text, kind=FAILED, ranks=(rank,))

    def _cause_of(self, error: BaseException, batch: List[Move]) -> BaseException:
        """Return the reason why the group has failed; if this rank is the reason, tell the others.

        The group's ``error`` may be the consequence of another rank's death or failure, of which
        this rank learns within ``_FOUND`` seconds.
        """
        until = time.monotonic() + _FOUND
        while time.monotonic() < until:
            try:
                call(lib.hvd_check)
            except Exception as found:
                return found
            if self.failed:
                return self.failed
            time.sleep(1e-2)
        rank, text = topology.rank(), error_text(error)
        if batch[0].handle is not None:  # otherwise try_out() has made this call
            more = f" and {len(batch) - 1} more" if len(batch) > 1 else ""
            text = (
                f"tensor '{batch[0].name}'{more}: rank {rank} could not move these "
                f"{sum(each.tensor.nbytes for each in batch)} bytes between GPUs: {text}. If the "
                "GPU has too little memory, use smaller batches or a smaller "
                "HVDLITE_FUSION_THRESHOLD, or set HVDLITE_GPU=host on every rank"
            )
        try:
            self._store.compare_set(_FAILURE, "", json.dumps([rank, text]))
            self._look_into_store()  # raises the error that another rank has stored earlier
        except HvdliteError as found:
            return found
        except Exception:  # the rank that serves the store has ended
            return error
        return error

    def end(self) -> None:
        """Close, and wait for the threads.

        Otherwise a thread would free the group while the interpreter ends, and PyTorch's destructor
        of the group then aborts the process.
        """
        self.close(HvdliteError("this rank has left the job in which the tensor was submitted"))
        for thread in self._threads:
            thread.join(_FOUND)

    def close(self, error: BaseException) -> None:
        """Abort the group and its calls in progress; all later calls raise this error."""
        with self._changed:
            if self.failed:
                return
            self.failed = error
            self._changed.notify_all()
        self._closed.set()

    def _abort(self) -> None:
        self._closed.wait()
        with contextlib.suppress(Exception):
            self._group.abort()

    def is_idle(self) -> bool:
        """Return True if no tensor waits or is being moved."""
        with self._changed:
            self._moving = [each for each in self._moving if not each.has_ended()]
            return not (self._waiting or self._agreed or self._moving)

    def _run(self) -> None:
        """Move tensors for which no caller waits; after a rank's death end the group's calls."""
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


def _started(function: Callable, *args) -> threading.Thread:
    thread = threading.Thread(target=function, args=args, name="hvdlite gpu", daemon=True)
    thread.start()
    return thread


class Delegated:
    """Several collectives of a :class:`Mover`, started together; has the methods of ``Started``."""

    def __init__(self, mover: Mover, started: Started, moves: List[Move]) -> None:
        self._mover, self._started, self._moves = mover, started, moves

    def done(self, seconds: float = 0) -> bool:
        """Return True if all collectives have ended; wait for other ranks at most ``seconds``."""
        if not (self._mover.failed or self._started.done(seconds)):
            return False
        self._mover.launch()
        ended = all(each.has_ended() or not lib.hvd_turn(each.handle) for each in self._moves)
        return ended or self._mover.failed is not None

    def finish(self) -> List[Tuple[torch.Tensor, Any]]:
        """Wait until all collectives have ended; return each result with its ``rows``.

        :raises hvdlite.HvdliteError: ranks disagree, a rank is dead, or NCCL has failed on a rank.
        """
        while not self._started.done(_LOOK):
            if self._mover.failed:
                raise self._mover.failed
        self._started.finish()
        return [(self._mover.finish(each), each.rows) for each in self._moves]
