"""Describes, starts and waits for collectives of the C library, on memory of any library."""

from collections import deque
from contextlib import suppress
from typing import Any, Deque, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np

from hvdlite.core import arguments
from hvdlite.core.native import c_text, call, exception_of, ffi, lib, new_error
from hvdlite.core.process_set import ProcessSet, global_process_set, group_of

DTYPES = {
    np.dtype(name): getattr(lib, "HVD_" + name.upper())
    for name in (
        "float16",
        "float32",
        "float64",
        "uint8",
        "int8",
        "int16",
        "int32",
        "int64",
        "bool",
    )
}


class Memory(NamedTuple):
    """An array of any library, contiguous, as the C library takes it."""

    address: int
    dtype: int  # one of lib.HVD_FLOAT32, ...
    shape: Sequence[int]
    owner: Any  # keeps the memory as long as it is in use


_abandoned: Deque["_Work"] = deque()  # that nobody waits for: C may still write to their memory


def describe(kind: int, name: str, splits=None, **members):
    """Return an ``hvd_tensor *``, and what it points to; the caller keeps both alive.

    :param splits: an int64 matrix: ``splits[i, j]`` rows go from rank i to rank j.
    :param members: more members of ``hvd_tensor``.
    :raises ValueError: one that a user has given is no number of its kind.
    """
    if not arguments.PLAIN.issuperset(map(type, members.values())):
        members = arguments.plain(members)
    alive = [c_text(name, "the tensor name")]
    members.update(kind=kind, name=alive[0])
    if splits is not None:
        alive.append(ffi.from_buffer("int64_t[]", splits))
        members.update(splits=alive[1], nsplits=splits.size)
    try:
        return ffi.new("hvd_tensor *", members), alive
    except (TypeError, OverflowError):
        arguments.plain(members)  # knows which argument it is
        raise


def memory_of(array: np.ndarray) -> Memory:
    """Describe a contiguous NumPy array, of one of DTYPES or of ml_dtypes' bfloat16."""
    dtype = DTYPES.get(array.dtype, lib.HVD_BFLOAT16)
    return Memory(array.ctypes.data, dtype, array.shape, array)


def is_known(dtype: np.dtype) -> bool:
    """Tell whether the C library has the element type; ml_dtypes' bfloat16 is found by name."""
    return dtype in DTYPES or dtype.name == "bfloat16"


def run(kind: int, name: str, array: np.ndarray, out: np.ndarray, **members) -> None:
    """Do one collective from ``array`` to ``out``, both contiguous; they may be the same."""
    run_all(kind, [name], [array], [out], [members])


def run_all(
    kind: int,
    names: Sequence[str],
    arrays: Sequence[np.ndarray],
    outs: Sequence[np.ndarray],
    members: Sequence[dict],
) -> None:
    """Do several at once. When this returns, or raises the errors of some, all have ended."""
    start_all(kind, names, arrays, outs, members).finish()


def start_all(kind, names, arrays, outs, members) -> "Started":
    """Start several at once, on NumPy arrays; arguments as for :func:`run_all`."""
    return Started(kind, names, list(map(memory_of, arrays)), list(map(memory_of, outs)), members)


class _Work(NamedTuple):
    """What C works on: the C handles by the collectives' numbers, and their memory."""

    handles: Dict[int, Any]
    memory: Any

    def is_done(self, seconds: float = 0) -> bool:
        """Tell whether all have ended; wait for each of them at most so many seconds."""
        handles = self.handles.values()
        return all(lib.hvd_finish(handle, seconds, ffi.NULL) for handle in handles)


class Started:
    """Several collectives that were started at once. Any threads may wait for them.

    :param kind: one of lib.HVD_ALLREDUCE, ...
    :param names: one a tensor; unique among the tensors in work.
    :param arrays: and ``outs``: a :class:`Memory` for each.
    :param members: more members of ``hvd_tensor`` for each.
    """

    def __init__(self, kind, names, arrays, outs, members) -> None:
        self._work = _Work({}, (arrays, outs))
        self._refused: Dict[int, Exception] = {}
        if _abandoned:
            _let_go_of_one()
        described = [_describe(kind, *one) for one in zip(names, arrays, outs, members)]
        if len(described) > 1:  # raises before any of them is sent
            for tensor, _alive in described:
                call(lib.hvd_validate, tensor)
        for number, (tensor, _alive) in enumerate(described):
            self._start(number, tensor)
        if not self._work.handles:
            _raise(self._refused)

    def done(self, seconds: float = 0) -> bool:
        """Tell whether all have ended; wait for each of them at most so many seconds."""
        return self._work.is_done(seconds)

    def finish(self) -> None:
        """Wait until all have ended; raise the errors of those that failed."""
        errors, error = dict(self._refused), new_error()
        for number, handle in self._work.handles.items():
            while not lib.hvd_finish(handle, 0.1, error):  # short waits let Ctrl-C through
                pass
            if error.code != lib.HVD_OK:
                errors[number] = exception_of(error)
        _raise(errors)

    def __del__(self) -> None:
        if not self.done():
            _abandoned.append(self._work)

    def _start(self, number: int, tensor) -> None:
        error = new_error()
        handle = lib.hvd_start(tensor, error)
        if handle == ffi.NULL:
            self._refused[number] = exception_of(error)
        else:
            self._work.handles[number] = ffi.gc(handle, lib.hvd_drop)


def _let_go_of_one() -> None:
    """Forget one abandoned work if it has ended: as many are forgotten as are started."""
    with suppress(IndexError):  # another thread has been faster
        work = _abandoned.popleft()
        if not work.is_done():
            _abandoned.append(work)


def _raise(of: Dict[int, Exception]) -> None:
    errors = [of[number] for number in sorted(of)]
    if errors:
        raise errors[0] if len(errors) == 1 else type(errors[0])("; ".join(map(str, errors)))


def _describe(kind: int, name: str, array: Memory, out: Memory, members: dict):
    dims = ffi.new("int64_t[]", array.shape or [0])
    memory = {
        "in": ffi.cast("void *", array.address),
        "out": ffi.cast("void *", out.address),
    }
    shape = {"dtype": array.dtype, "ndim": len(array.shape), "dims": dims}
    tensor, alive = describe(
        kind, name, **{"prescale": 1, "postscale": 1, **members}, **memory, **shape
    )
    return tensor, [*alive, dims]


def gather_numbers(
    numbers: Sequence, name: str, process_set: ProcessSet = global_process_set
) -> np.ndarray:
    """Gather ``numbers``, equally many on every rank, into one row a rank."""
    started, everyone = start_gathering(numbers, name, process_set)
    started.finish()
    return everyone


def start_gathering(
    numbers: Sequence, name: str, process_set: ProcessSet
) -> Tuple[Started, np.ndarray]:
    """Start what :func:`gather_numbers` does; the array is filled when it has ended."""
    mine = np.array([numbers], np.int64)
    everyone = np.empty((process_set.size(), *mine.shape[1:]), np.int64)
    members = {"out_rows": len(everyone), "group": group_of(process_set)}
    return start_all(lib.HVD_ALLGATHER, [f"{name}.rows"], [mine], [everyone], [members]), everyone


def gather_bytes(
    data: bytes, name: str, process_set: ProcessSet = global_process_set
) -> List[bytes]:
    """Gather ``data`` of every rank, in the order of ranks."""
    lengths = gather_numbers([len(data)], name, process_set)[:, 0]
    mine, everyone = np.frombuffer(data, np.uint8), np.empty(lengths.sum(), np.uint8)
    run(
        lib.HVD_ALLGATHER, name, mine, everyone,
        out_rows=len(everyone), group=group_of(process_set),
    )  # fmt: skip
    return [part.tobytes() for part in np.split(everyone, np.cumsum(lengths)[:-1])]
