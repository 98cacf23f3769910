"""Repeated collectives, which are described and checked only once."""

from typing import Any, Callable, Dict, List, Optional, Sequence

import numpy as np

from hvdlite.core import _prepared  # type: ignore[attr-defined]
from hvdlite.core.collectives import (
    Memory,
    Work,
    abandon,
    dense,
    describe_on,
    memory_of,
    reduction,
    release_one_abandoned,
    result_of,
)
from hvdlite.core.module_state import ModuleState
from hvdlite.core.names import tensor_name
from hvdlite.core.native import BRIEFLY, address_of, exception_of, ffi, lib, new_error
from hvdlite.core.outs import copy_to_output
from hvdlite.core.process_set import ProcessSet, group_of
from hvdlite.core.splits import bytes_of_row, rows_of

# limit on the number of Prepared objects: each takes some KB, and a program may keep making names
_MOST = 1024


class _Calls(ModuleState):
    """The prepared calls, in one dict that is never replaced: ``find`` and C code refer to it."""

    def begin(self) -> None:
        self.kept: Dict[tuple, Optional[Prepared]] = {}

    def begin_job(self) -> None:
        """Forget all calls, because a new job may have another number of ranks."""
        self.kept.clear()


_calls = _Calls()
# find(key) returns the Prepared of a call, or None. A key has the call's arguments, the dtype and
# the shape. A wrong argument raises TypeError.
find = _calls.kept.get
# run(prepared, address of the input, address of the output, owner of both) does a collective. It
# returns None; or a handle for ``result_of``, if ranks may have sent different numbers of rows.
# It raises HvdliteError, like every collective.
run = _prepared.run
# again(verb, begin, array, options, out) does a collective on a NumPy array. If there is a Prepared
# for this call, the Prepared runs it; otherwise ``begin(array, *options, out)`` starts it and
# returns a handle. ``options`` has all other arguments; the last of them is the process set.
again = _prepared.again


def _unprepared(verb: str, begin: Callable, array, options: tuple, out, key: Optional[tuple]):
    """Run a call of ``again()`` for which there is no Prepared; record the call under ``key``."""
    result = begin(array, *options, out).synchronize()
    if key:
        note(key, lambda: describe_call(verb, array, result.shape, options))
    return result


def describe_call(verb: str, array: np.ndarray, shape, options: tuple) -> tuple:
    """Return the arguments of a ``Prepared``.

    shape: the result's shape; None: the shape of ``array``.
    """
    name, process_set = options[0 if verb in ("allreduce", "reducescatter") else -2], options[-1]
    if verb in ("allreduce", "reducescatter"):
        members = reduction(options[1], options[2:4], process_set)
    else:
        members = {"group": group_of(process_set)}
    if verb == "broadcast":
        members["root"] = process_set.number_of(options[0])
    elif verb != "allreduce":
        members.update(out_rows=rows_of(shape), open=int(verb != "reducescatter"))
    kind = getattr(lib, f"HVD_{verb.upper()}")
    full = tensor_name(verb, name, process_set)
    return full, memory_of(dense(array)), members, process_set, kind, shape


def _take_result(handle, array: np.ndarray, options: tuple, result, out) -> np.ndarray:
    """Return ``result``, or a new array if ranks have sent different numbers of rows."""
    name, process_set = options[-2:]
    size, row_bytes = process_set.size(), bytes_of_row(array)
    memory, rows_from = result_of(handle, result.ctypes.data, size, row_bytes)
    if memory is None:
        return result
    made: np.ndarray = np.ndarray((rows_from.sum(), *array.shape[1:]), array.dtype, memory)
    return copy_to_output(name, made.copy(), out)


class Prepared:
    """A collective, for ``run``. Any thread may run it, but not two threads at the same time.

    :param name: the full name.
    :param array: gives the dtype and the shape of the input.
    :param members: op and scales, as members of ``hvd_tensor``.
    :param shape: the result's shape; None: the same as the input's.
    :raises ValueError: an argument is wrong.
    """

    __slots__ = "_tensor", "_alive", "_set", "_group", "_idle", "shape", "in_place"

    def __init__(
        self, name: str, array: Memory, members: dict, process_set: ProcessSet,
        kind: int = lib.HVD_ALLREDUCE, shape: Optional[Sequence[int]] = None,
    ) -> None:  # fmt: skip
        members = {**members, "waited": 1}
        self._tensor, self._alive = describe_on(kind, name, array, array, members)
        self._set = process_set
        self.shape = shape or array.shape
        # True: the result may overwrite the input.
        self.in_place = kind in (lib.HVD_ALLREDUCE, lib.HVD_BROADCAST)
        self._enter_group()
        self._idle.append(self._new())

    def _enter_group(self) -> None:
        """Store the number that the process set has in C; a new job may change this number."""
        self._tensor.group = group_of(self._set)
        self._idle: List[Any] = []
        self._group = self._tensor.group

    def _new(self) -> tuple:
        """Return the address of a new handle, and the handle."""
        release_one_abandoned()
        error = new_error()
        handle = lib.hvd_plan(self._tensor, error)
        if handle == ffi.NULL:
            raise exception_of(error)
        return int(ffi.cast("uintptr_t", handle)), ffi.gc(handle, lib.hvd_drop)

    def _end(self, handle: tuple, owner: Any) -> Any:
        """Wait for a collective that was slow or failed; return what ``run`` returns."""
        error = new_error()
        try:
            while not lib.hvd_finish(handle[1], BRIEFLY, error):
                pass
            if error.code:
                raise exception_of(error)
        except BaseException:
            abandon(Work({0: handle[1]}, owner))
            raise
        return handle[1] if self._tensor.open else None


def note(key: tuple, described: Callable[[], tuple]) -> None:
    """Record that this call has succeeded. After its second success, keep a :class:`Prepared`.

    :param described: returns the arguments of the Prepared.
    """
    if key not in _calls.kept:
        if len(_calls.kept) >= _MOST:
            _calls.kept.clear()
        _calls.kept[key] = None
    elif _calls.kept[key] is None:
        _calls.kept[key] = Prepared(*described())


_prepared.setup({
    "hvd_run": address_of("hvd_run"), "briefly": BRIEFLY, "kept": _calls.kept,
    "array_type": np.ndarray, "empty": np.empty, "unprepared": _unprepared, "moved": _take_result,
    # attributes of Prepared that the C code uses
    "set": "_set", "group": "_group", "idle": "_idle", "in_place": "in_place",
    "enter_group": "_enter_group", "new_handle": "_new", "end": "_end",
})  # fmt: skip
