"""Moves GPU tensors in the order of their turns, which is the same on all ranks."""

import contextlib
import threading
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch

from hvdlite.core.collectives import Memory, Started
from hvdlite.core.error_text import error_text
from hvdlite.core.native import HvdliteError, call, ffi, lib
from hvdlite.torch.moves import Move, move_by
from hvdlite.torch.tensors import DTYPES

_LOOK = 0.1  # seconds between two checks that the job has not failed
_FOUND = 2  # seconds to wait for hvdlite to find a dead rank


class Mover:
    """Moves tensors of one device among the ranks of a process set.

    :param group: a backend of ``torch.distributed`` for these ranks.
    """

    def __init__(self, device: torch.device, group) -> None:
        self.device, self._group = device, group
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._changed = threading.Condition(threading.RLock())  # guards the fields below
        self._waiting: List[Move] = []  # moves on which the ranks have not agreed yet
        self._agreed: Dict[int, Move] = {}  # agreed moves, by turn
        self._turn = 1  # the turn of the next move
        self._moving: List[Move] = []  # moves in progress; keeps their memory alive
        self.failed: Optional[BaseException] = None
        self._thread: Optional[threading.Thread] = None

    def run(self) -> None:
        """Begin to make the calls for which no caller waits, in a thread of its own."""
        self._thread = threading.Thread(target=self._run, name="hvdlite gpu", daemon=True)
        self._thread.start()

    def try_out(self) -> str:
        """Sum a number over the ranks; return the error if the group refuses to, else "".

        NCCL makes its communicator in the first call. It may refuse GPUs that hvdlite accepts.
        """
        one = torch.ones(1, device=self.device)
        members = {"op": lib.HVD_SUM, "prescale": 1.0, "postscale": 1.0}
        move = Move(lib.HVD_ALLREDUCE, None, one, one, members, self._ready())
        try:
            self._begin([move])
        except Exception as error:
            return error_text(error)
        self.finish(move)
        return ""

    def _ready(self) -> Any:
        """Return an event after all work that the caller has submitted to the GPU so far."""
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
                Move(kind, handle, tensors[number], outs[number], members[number], ready)
                for number, handle in started.handles().items()
            ]
            self._waiting.extend(moves)
            self._changed.notify()
        return Delegated(self, started, moves)

    def launch(self) -> None:
        """Begin the moves on which the ranks have agreed, in the order of turns."""
        with self._changed:
            for move in [each for each in self._waiting if each.is_agreed()]:
                self._waiting.remove(move)
                turn = lib.hvd_turn(move.handle)
                if turn:  # turn 0 means an error, which finish() raises
                    self._agreed[turn] = move
            batch = self._next_batch()
            while batch:
                self._turn += len(batch)
                try:
                    self._begin(batch)
                except Exception as error:
                    cause = self.failed or _cause_of(error)
                    for move in batch:
                        move.error = cause
                    self._fail(cause)
                batch = self._next_batch()

    def _next_batch(self) -> List[Move]:
        """Return the moves of the next batch; []: some of them are not agreed yet."""
        first = self._agreed.get(self._turn)
        turns = range(self._turn, lib.hvd_last_turn(first.handle) + 1) if first else ()
        if not all(turn in self._agreed for turn in turns):
            return []
        return [self._agreed.pop(turn) for turn in turns]

    def _begin(self, batch: List[Move]) -> None:
        if self.failed:
            raise self.failed
        if self._stream is None:
            move_by(self._group, batch)
            for move in batch:
                move.ended = True
            return
        with torch.cuda.device(self.device), torch.cuda.stream(self._stream):
            for move in batch:
                self._stream.wait_event(move.ready)
            move_by(self._group, batch)
            ended = self._stream.record_event()
        for move in batch:
            move.ended = ended
        self._moving.extend(batch)

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
        """If the job has failed, end the group's calls, which wait for dead ranks, and raise."""
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

    def end(self) -> None:
        """Close, and wait for the thread.

        Otherwise the thread would free the group while the interpreter ends, and PyTorch's
        destructor of the group then aborts the process.
        """
        self.close()
        if self._thread is not None:
            self._thread.join(_FOUND)

    def close(self) -> None:
        """Abort the group and its calls in progress, and tell the thread to end."""
        with self._changed:
            self.failed = self.failed or HvdliteError("the ranks of this job have parted")
            self._changed.notify_all()
        with contextlib.suppress(Exception):
            self._group.abort()

    def is_idle(self) -> bool:
        """Return True if no move is waiting or in progress."""
        with self._changed:
            self._moving = [each for each in self._moving if not each.has_ended()]
            return not (self._waiting or self._agreed or self._moving)

    def _run(self) -> None:
        """Begin moves for which no caller waits; after a rank's death end the group's calls."""
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
    """Return the job's error if the job fails within ``_FOUND`` seconds, else ``error``.

    The job's error names the dead rank; the group's ``error`` does not.
    """
    until = time.monotonic() + _FOUND
    while time.monotonic() < until:
        try:
            call(lib.hvd_check)
        except Exception as found:
            return found
        time.sleep(1e-2)
    return error


class Delegated:
    """Several collectives that a mover has started together; like ``Started``."""

    def __init__(self, mover: Mover, started: Started, moves: List[Move]) -> None:
        self._mover, self._started, self._moves = mover, started, moves

    def done(self, seconds: float = 0) -> bool:
        """Return True if all have ended; wait for the other ranks at most ``seconds``."""
        if not self._started.done(seconds):
            return False
        self._mover.launch()
        return all(each.has_ended() or not lib.hvd_turn(each.handle) for each in self._moves)

    def finish(self) -> List[Tuple[torch.Tensor, Any]]:
        """Wait until all have ended; return each result with its ``rows``.

        :raises hvdlite.HvdliteError: the ranks disagree, or a rank is dead.
        """
        self._started.finish()
        return [(self._mover.finish(each), each.rows) for each in self._moves]
