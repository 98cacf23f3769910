"""Collectives that come again: described and checked once."""

from typing import Any, Callable, Dict, List, Optional, Sequence

import numpy as np

from hvdlite.core import _prepared  # type: ignore[attr-defined]
from hvdlite.core.collectives import (
    Memory,
    Work,
    abandon,
    dense,
    describe_on,
    let_go_of_one,
    memory_of,
    reduction,
    result_of,
)
from hvdlite.core.names import tensor_name
from hvdlite.core.native import exception_of, ffi, lib, new_error
from hvdlite.core.outs import deliver
from hvdlite.core.process_set import ProcessSet, group_of
from hvdlite.core.rows import bytes_of_row, rows_of

_MOST = 1024  # kept; each has some KB
_kept: Dict[tuple, Optional["Prepared"]] = {}
# Returns what is prepared for a key: all of a call's arguments, dtype and shape. TypeError: it has
# a wrong argument.
find = _kept.get
# run(prepared, address of the input, address of the output, what keeps both) does a collective, and
# returns None; or, if other ranks may have brought other numbers of rows, its handle, of which
# ``result_of`` knows where the result is. It raises HvdliteError, as every collective.
run = _prepared.run
# again(verb, begin, array, how, out) does a collective on a NumPy array, which is prepared if it
# has come before with all its arguments: else ``begin``, of ``array``, ``how`` and ``out``, returns
# a handle. ``how`` are all other arguments; the last is the process set.
again = _prepared.again


def _unprepared(verb: str, begin: Callable, array, how: tuple, out, key: Optional[tuple]) -> Any:
    """Do ``again`` for the first times; ``key``: if the array's memory may be taken as it lies."""
    result = begin(array, *how, out).synchronize()
    if key:
        note(key, lambda: described(verb, array, result.shape, how))
    return result


def described(verb: str, array: np.ndarray, shape, how: tuple) -> tuple:
    """Return what a ``Prepared`` is made of; ``shape`` is the result's, None: the array's."""
    name, process_set = how[0 if verb in ("allreduce", "reducescatter") else -2], how[-1]
    if verb in ("allreduce", "reducescatter"):
        members = reduction(how[1], how[2:4], process_set)
    else:
        members = {"group": group_of(process_set)}
    if verb == "broadcast":
        members["root"] = process_set.number_of(how[0])
    elif verb != "allreduce":
        members.update(out_rows=rows_of(shape), open=int(verb != "reducescatter"))
    kind = getattr(lib, f"HVD_{verb.upper()}")
    full = tensor_name(verb, name, process_set)
    return full, memory_of(dense(array)), members, process_set, kind, shape


def _moved(handle, array: np.ndarray, how: tuple, result, out) -> np.ndarray:
    """Return ``result``, or what does not fit there: other ranks have brought other rows."""
    name, process_set = how[-2:]
    size, row_bytes = process_set.size(), bytes_of_row(array)
    memory, came = result_of(handle, result.ctypes.data, size, row_bytes)
    if memory is None:
        return result
    made: np.ndarray = np.ndarray((came.sum(), *array.shape[1:]), array.dtype, memory)
    return deliver(name, made.copy(), out)


class Prepared:
    """A collective, for ``run``. Any threads may run it, not two at the same time.

    :param name: the full one.
    :param array: says dtype and shape.
    :param members: op and scales, as members of ``hvd_tensor``.
    :param shape: of the result; None: as the array's.
    :raises ValueError: one of these is wrong.
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
        # Whether the result may be written over the input.
        self.in_place = kind in (lib.HVD_ALLREDUCE, lib.HVD_BROADCAST)
        self._enter_group()
        self._idle.append(self._new())

    def _enter_group(self) -> None:
        """Note the number in C of the process set, which a new job changes."""
        self._tensor.group = group_of(self._set)
        self._idle: List[Any] = []
        self._group = self._tensor.group

    def _new(self) -> tuple:
        """Return a handle, after its address."""
        let_go_of_one()
        error = new_error()
        handle = lib.hvd_plan(self._tensor, error)
        if handle == ffi.NULL:
            raise exception_of(error)
        return int(ffi.cast("uintptr_t", handle)), ffi.gc(handle, lib.hvd_drop)

    def _end(self, handle: tuple, owner: Any) -> Any:
        """Wait for what takes longer, or has failed; return what ``run`` returns."""
        error = new_error()
        try:
            while not lib.hvd_finish(handle[1], 0.1, error):  # short waits let Ctrl-C through
                pass
            if error.code:
                raise exception_of(error)
        except BaseException:
            abandon(Work({0: handle[1]}, owner))
            raise
        return handle[1] if self._tensor.open else None


def forget() -> None:
    """Forget all: a new job may have another number of ranks."""
    _kept.clear()


def note(key: tuple, described: Callable[[], tuple]) -> None:
    """Note that this call is right. The second time, keep a :class:`Prepared`.

    :param described: returns what it is made of.
    """
    if key not in _kept:
        if len(_kept) >= _MOST:
            _kept.clear()
        _kept[key] = None
    elif _kept[key] is None:
        _kept[key] = Prepared(*described())


_run = int(ffi.cast("uintptr_t", ffi.addressof(lib, "hvd_run")))
_prepared.setup(_run, _kept, np.ndarray, np.empty, _unprepared, _moved)
