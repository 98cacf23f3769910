"""Runs collectives of the C library on arrays of any library."""

import math
import threading
import time
from collections import deque
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Deque, Dict, Iterator, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from hvdlite.core import arguments
from hvdlite.core.module_state import ModuleState
from hvdlite.core.native import (
    BRIEFLY,
    STALLED,
    HvdliteError,
    RankFailedError,
    c_text,
    call,
    exception_of,
    ffi,
    lib,
    new_error,
)
from hvdlite.core.process_set import ProcessSet, global_process_set, group_of

#: The dtypes of the C library by their names in NumPy, PyTorch and MXNet: "float32", ...
DTYPE_CODES = {
    name[len("HVD_") :].lower(): code
    for name, code in ffi.typeof("hvd_dtype").relements.items()
    if name != "HVD_DTYPES"
}
DTYPES = {np.dtype(name): code for name, code in DTYPE_CODES.items() if name in np.sctypeDict}


class Memory(NamedTuple):
    """A contiguous array of any library, described for the C library."""

    address: int
    dtype: int  # one of lib.HVD_FLOAT32, ...
    shape: Sequence[int]
    owner: Any  # the object that keeps the memory alive


class _Works(ModuleState):
    def begin(self) -> None:
        # Collectives for which no caller waits any more; the C library may still use their memory.
        self.abandoned: Deque[Work] = deque()
        self.limit = threading.local()  # ``until``: the time at which this thread's waits fail


_works = _Works()


def describe(
    kind: int, name: str, splits=None, failed: Optional[str] = None, call: str = "", **members
):
    """Return an ``hvd_tensor *`` and the objects to which it points; the caller keeps both alive.

    :param splits: an int64 array: how many rows go to each rank; None: the same number for each.
    :param failed: why this rank has no data; the collective fails with this text on every rank.
    :param call: what ranks must have in common, for a call that is composed of other collectives.
    :param members: more members of ``hvd_tensor``.
    :raises ValueError: a member that the user has given has a wrong value.
    """
    if not arguments.PLAIN.issuperset(map(type, members.values())):
        members = arguments.plain(members)
    alive = [c_text(name, "the tensor name")]
    members.update(kind=kind, name=alive[0], grouped=getattr(name, "of", 0))
    if splits is not None:
        alive.append(ffi.from_buffer("int64_t[]", splits))
        members.update(splits=alive[1], nsplits=splits.size)
    if failed is not None:
        alive.append(ffi.new("char[]", failed.encode(errors="replace")))
        members.update(failed=alive[-1])
    if call:
        alive.append(ffi.new("char[]", call.encode()))
        members.update(call=alive[-1])
    try:
        return ffi.new("hvd_tensor *", members), alive
    except (TypeError, OverflowError):
        arguments.plain(members)  # raises an error that names the argument
        raise


def code_of(dtype: np.dtype) -> int:
    """Return the C library's number of a dtype, such as lib.HVD_FLOAT32.

    :raises ValueError: the C library lacks the dtype.
    """
    code = DTYPES.get(dtype)
    if code is None and dtype.isnative:  # a dtype of another package, such as ml_dtypes
        code = DTYPE_CODES.get(dtype.name)
    if code is None:
        known = ", ".join(sorted(DTYPE_CODES))
        raise ValueError(f"dtype {dtype} is not supported: expected one of {known}")
    return code


def memory_of(array: np.ndarray) -> Memory:
    """Describe a contiguous NumPy array."""
    return Memory(array.ctypes.data, code_of(array.dtype), array.shape, array)


def reduction(op: int, scales: Sequence[float], process_set: ProcessSet) -> dict:
    """Return the members of ``hvd_tensor`` for a reduction."""
    scaled = {"prescale": scales[0], "postscale": scales[1]}
    return {"op": arguments.op_of(None, op), **scaled, "group": group_of(process_set)}


def dense(array) -> np.ndarray:
    """Return the array with its elements in C order: itself, or a copy.

    :raises ValueError: the C library lacks the dtype, or the array is masked.
    """
    if type(array) is not np.ndarray:
        arguments.refuse_mask(array)
        if hasattr(array, "asnumpy"):  # MXNet's array, which NumPy would read value by value
            array = array.asnumpy()
    array = np.asarray(array, order="C")
    code_of(array.dtype)
    return array


def run(kind: int, name: str, array: np.ndarray, out: np.ndarray, **members) -> None:
    """Do one collective from ``array`` to ``out``: contiguous arrays, or the same array."""
    run_all(kind, [name], [array], [out], [members])


def run_all(
    kind: int, names: Sequence[str], arrays: Sequence[np.ndarray], outs: Sequence[np.ndarray],
    members: Sequence[dict],
) -> None:  # fmt: skip
    """Start several collectives together. When this returns or raises, all of them have ended."""
    waited = [{**member, "waited": 1} for member in members]
    start_all(kind, names, arrays, outs, waited).finish()


def start_all(kind, names, arrays, outs, members) -> "Started":
    """Start several collectives together, on NumPy arrays; arguments as for :class:`Started`."""
    memories = [None if out is None else memory_of(out) for out in outs]
    return Started(kind, names, list(map(memory_of, arrays)), memories, members)


class Work(NamedTuple):
    """Collectives in progress: their C handles, by index, and the memory that they use."""

    handles: Dict[int, Any]
    memory: Any

    def is_done(self, seconds: float = 0) -> bool:
        """Return True if all collectives have ended; wait at most ``seconds`` for each."""
        handles = self.handles.values()
        return all(lib.hvd_finish(handle, seconds, ffi.NULL) for handle in handles)


class Started:
    """Several collectives that were started together. Several threads may wait for them.

    :param kind: one of lib.HVD_ALLREDUCE, ...
    :param names: a name for each tensor; no other tensor in progress may have this name.
    :param arrays: a :class:`Memory` for each tensor.
    :param outs: a :class:`Memory` for each result. None, together with ``open=1`` in ``members``:
        the C library allocates the memory, and :meth:`result` returns it.
    :param members: more members of ``hvd_tensor`` for each tensor.
    """

    def __init__(self, kind, names, arrays, outs, members) -> None:
        self._ended = True  # so that __del__ does nothing if a line below raises
        described = [describe_on(kind, *one) for one in zip(names, arrays, outs, members)]
        if len(described) > 1:  # raises for a wrong tensor before any tensor is sent
            for tensor, _alive in described:
                call(lib.hvd_validate, tensor)
        self._begin(names, [tensor for tensor, _alive in described], (arrays, outs))

    def _begin(self, names, tensors, memory) -> None:
        self._names, self._work = names, Work({}, memory)
        self._refused: Dict[int, Exception] = {}
        self._ended = False
        release_one_abandoned()
        if len(tensors) == 1:
            self._start(tensors)
        elif tensors:  # between the two calls of hvd_cork, one message announces all tensors
            lib.hvd_cork(tensors[0].group, True)
            try:
                self._start(tensors)
            finally:
                lib.hvd_cork(tensors[0].group, False)
        if not self._work.handles:
            _raise(self._refused)

    def _start(self, tensors) -> None:
        error = new_error()
        for number, tensor in enumerate(tensors):
            handle = lib.hvd_start(tensor, error)
            if handle == ffi.NULL:
                self._refused[number] = exception_of(error)
            else:
                self._work.handles[number] = ffi.gc(handle, lib.hvd_drop)

    def handles(self) -> Dict[int, Any]:
        """Return the C library's handles of the collectives that have begun, by index."""
        return self._work.handles

    def done(self, seconds: float = 0) -> bool:
        """Return True if all collectives have ended; wait at most ``seconds`` for each."""
        return self._work.is_done(seconds)

    def finish(self) -> None:
        """Wait until all collectives have ended; raise one error for those that failed."""
        errors, error = dict(self._refused), new_error()
        for number, handle in self._work.handles.items():
            while not lib.hvd_finish(handle, BRIEFLY, error):
                if time.monotonic() > getattr(_works.limit, "until", math.inf):
                    raise _timed_out(self._names[number])
            if error.code != lib.HVD_OK:
                errors[number] = exception_of(error)
        self._ended = True
        if errors:
            _raise(errors)

    def result(self, number: int, ranks: int, row_bytes: int) -> Tuple[Any, np.ndarray]:
        """Return a result whose size C has found, and the number of rows from each rank.

        Call :meth:`finish` before. The result is a buffer, freed with its last reference; None: the
        result is in ``out``.
        """
        out = self._work.memory[1][number]
        return result_of(self._work.handles[number], out and out.address, ranks, row_bytes)

    def __del__(self) -> None:
        if not self._ended:
            abandon(self._work)


def _timed_out(name: str) -> HvdliteError:
    text = f"tensor '{name}' timed out: another rank has not made the same call in this time: "
    text += "make the call on every rank of the group, or allow more time"
    return HvdliteError(text, kind=STALLED, tensor=name)


def result_of(handle, out: Optional[int], ranks: int, row_bytes: int) -> Tuple[Any, np.ndarray]:
    """Return what :meth:`Started.result` returns, for an output at the address ``out``."""
    rows = ffi.new("int64_t **")
    memory = lib.hvd_result(handle, rows)
    rows_from = np.array(ffi.unpack(rows[0], ranks), np.int64)
    if out is not None and memory == pointer(out):
        return None, rows_from
    # the buffer refers to the handle, which owns the memory
    kept = ffi.gc(memory, lambda _memory, handle=handle: None)
    return ffi.buffer(kept, int(rows_from.sum()) * row_bytes), rows_from


class Repeated:
    """Collectives that every training step repeats. They are described once; the memory may change.

    Parameters are those of :class:`Started`, but ``arrays`` give only shapes and dtypes.
    """

    def __init__(self, kind, names, arrays: Sequence[Memory], members) -> None:
        self._names = names
        self._alive = [describe_on(kind, *one) for one in zip(names, arrays, arrays, members)]
        self._tensors = [tensor for tensor, _alive in self._alive]
        for tensor in self._tensors:
            call(lib.hvd_validate, tensor)

    def start(self, ins: Sequence[int], outs: Sequence[int], owner) -> Started:
        """Start the collectives on memory at these addresses; ``owner`` keeps the memory alive."""
        for tensor, source, out in zip(self._tensors, ins, outs):
            setattr(tensor, "in", pointer(source))
            tensor.out = pointer(out)
        started = Started.__new__(Started)
        started._begin(self._names, self._tensors, owner)
        return started


@contextmanager
def limit_waits(seconds: float) -> Iterator[None]:
    """Make this thread's waits in the block raise HvdliteError after this total time."""
    _works.limit.until = time.monotonic() + seconds
    try:
        yield
    finally:
        del _works.limit.until


pointer = partial(ffi.cast, ffi.typeof("void *"))  # converts an address to a pointer


def abandon(work: Work) -> None:
    """Keep the memory of collectives until they have ended, because no thread waits for them."""
    if not work.is_done():
        _works.abandoned.append(work)


def release_one_abandoned() -> None:
    """Free one ``Work`` that abandon() keeps, if it has ended. Each start calls this once."""
    if _works.abandoned:
        with suppress(IndexError):  # another thread has taken the work
            abandon(_works.abandoned.popleft())


def _raise(of: Dict[int, Exception]) -> None:
    """Raise the first RankFailedError, or else the first error, with the texts of all errors."""
    errors = [of[number] for number in sorted(of)]
    deaths = [error for error in errors if isinstance(error, RankFailedError)]
    for error in deaths[:1] or errors[:1]:
        text = "; ".join(dict.fromkeys(map(str, errors)))
        raise error if text == str(error) else type(error)(text, **vars(error))


def describe_on(kind: int, name: str, array: Memory, out: Optional[Memory], members: dict):
    """Return what :func:`describe` returns, for a tensor in this memory."""
    # a tensor with ``failed`` moves no data, so its shape does not matter, and may be invalid
    shape = [0] if members.get("failed") else array.shape
    dims = ffi.new("int64_t[]", shape or [0])
    memory = {
        "in": pointer(array.address),
        "out": ffi.NULL if out is None else pointer(out.address),
    }
    of_array = {"dtype": array.dtype, "ndim": len(shape), "dims": dims}
    tensor, alive = describe(
        kind, name, **{"prescale": 1, "postscale": 1, **members}, **memory, **of_array
    )
    return tensor, [*alive, dims]


def gather_numbers(
    numbers: Sequence, name: str, process_set: ProcessSet = global_process_set, **members
) -> np.ndarray:
    """Gather each rank's ``numbers``, equally many on all ranks, into one row for each rank.

    :param members: more arguments of :func:`describe`.
    """
    mine = np.array([numbers], np.int64)
    everyone = np.empty((process_set.size(), *mine.shape[1:]), np.int64)
    members.update(out_rows=len(everyone), group=group_of(process_set))
    run(lib.HVD_ALLGATHER, f"{name}.rows", mine, everyone, **members)
    return everyone
