"""Collectives that come again: described and checked once."""

from typing import Any, Callable, Dict, List, Optional, Sequence

from hvdlite.core.collectives import Memory, Work, abandon, describe_on, let_go_of_one
from hvdlite.core.native import exception_of, ffi, lib, new_error
from hvdlite.core.process_set import ProcessSet, group_of

_MOST = 1024  # kept; each has some KB
_kept: Dict[tuple, Optional["Prepared"]] = {}
# Returns what is prepared for a key: all of a call's arguments, dtype and shape. TypeError: it has
# a wrong argument.
find = _kept.get
_run = lib.hvd_run


class Prepared:
    """A collective. Any threads may run it, not two at the same time.

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

    def run(self, source, out, owner: Any) -> Any:
        """Do it from and to memory at a ``void *``, which ``owner`` keeps; return when it is done.

        Return None; or, if other ranks may have brought other numbers of rows, the handle, of which
        ``result_of`` knows where the result is.

        :raises hvdlite.HvdliteError: as every collective; another thread runs it.
        """
        if self._group != self._set._group:
            self._enter_group()
        idle = self._idle
        try:
            handle = idle.pop()
        except IndexError:  # other threads have them all, or did until Ctrl-C
            handle = self._new()
        try:
            if not _run(handle, source, out, 0.1):
                _finish(handle)
                if self._tensor.open:
                    return handle
        except BaseException:
            abandon(Work({0: handle}, owner))
            raise
        idle.append(handle)
        return None

    def _enter_group(self) -> None:
        """Note the number in C of the process set, which a new job changes."""
        self._tensor.group = group_of(self._set)
        self._idle: List[Any] = []
        self._group = self._tensor.group

    def _new(self):
        """Return a handle."""
        let_go_of_one()
        error = new_error()
        handle = lib.hvd_plan(self._tensor, error)
        if handle == ffi.NULL:
            raise exception_of(error)
        return ffi.gc(handle, lib.hvd_drop)


def _finish(handle) -> None:
    error = new_error()
    while not lib.hvd_finish(handle, 0.1, error):  # short waits let Ctrl-C through
        pass
    if error.code:
        raise exception_of(error)


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
