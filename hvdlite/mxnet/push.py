"""Pushes collectives to MXNet's engine: the only caller of ``csrc/mxnet/push.c``."""

import functools
import itertools
import os
import re
import sys
import time
from typing import Any, Dict, List, NamedTuple

import mxnet as mx

from hvdlite import at_exit
from hvdlite.core.collectives import describe
from hvdlite.core.module_state import ModuleState
from hvdlite.core.native import call, exception_of, ffi, lib, new_error, own_error
from hvdlite.exit import script_end

IS_MXNET_1 = mx.__version__.startswith("1.")


def _open():
    # MXNet's asynchronous functions have three arguments before MXNet 2.0.0b1, and four since then.
    four = not IS_MXNET_1 and not re.match(r"2\.0\.0(a|b0)", mx.__version__)
    naive = os.environ.get("MXNET_ENGINE_TYPE") == "NaiveEngine"
    library = ffi.new("hvd_mxnet **")
    path = mx.libinfo.find_lib_path()[0].encode()
    call(lib.hvd_mxnet_open, library, path, 4 if four else 3, naive)
    return library[0]


_mxnet = _open()
# Each in-place call needs this function, so it calls MXNet's library directly, which is faster.
is_recording = functools.partial(lib.hvd_mxnet_is_recording, _mxnet)
_NDArray = mx.nd.NDArray  # a module variable, because attribute look-ups cost time in each push
_push, _push_in_place = lib.hvd_mxnet_push, lib.hvd_mxnet_push_in_place
_cast, _POINTER = ffi.cast, ffi.typeof("void *")
_NONE = itertools.repeat(None)  # one None for each tensor
_MOST_NAMES = 8192  # the largest number of names whose descriptions are kept


class Settings(NamedTuple):
    """The arguments that all allreduces of one trainer or one call share."""

    op: int
    prescale: float
    postscale: float
    priority: int
    group: int
    states: int = 0  # identifies the optimizer states that were just loaded; 0: nothing to compare


class Described(NamedTuple):
    """The C description of an allreduce of one name, kept for the next training step."""

    arguments: tuple  # the description is valid for these arguments only
    tensor: Any  # hvd_tensor *
    name: str
    alive: List[Any]  # references that keep the memory to which ``tensor`` points


def push_in_place(described: Described, array) -> None:
    """Push one in-place allreduce faster than :func:`push`; scripts may do so for each gradient."""
    if not isinstance(array, _NDArray):
        raise _no_array(described.name, array)
    error = own_error()
    if _push_in_place(_mxnet, described.tensor, array.handle.value, error):
        raise exception_of(error)


class InPlace:
    """Several in-place allreduces, described once. Each training step pushes them again."""

    def __init__(self, names, settings: Settings) -> None:
        self._described = [describe_allreduce(name, settings) for name in names]
        self._works = ffi.new("hvd_mxnet_work[]", len(names))
        for work, each in zip(self._works, self._described):
            work.tensor = each.tensor

    def push(self, arrays) -> None:
        """Push the allreduces of these arrays as one operation; errors as for :func:`push`."""
        for work, array, each in zip(self._works, arrays, self._described):
            if not isinstance(array, _NDArray):
                raise _no_array(each.name, array)
            work.out = _cast(_POINTER, array.handle.value)
        error = own_error()
        if _push(_mxnet, self._works, len(self._works), error):
            raise exception_of(error)


def push(kind, names, outs, details, sources=_NONE, residuals=_NONE) -> None:
    """Push collectives as one operation, which writes ``outs`` from ``sources`` or in place.

    Returns immediately. MXNet's engine submits all the collectives when no other operation uses
    their arrays. A wrong argument raises here, and nothing is pushed. If a collective fails later,
    MXNet raises MXNetError at the first wait for any of ``outs``.

    :param details: a dict per collective of ``hvd_tensor`` members: priority, op, root, group,
        prescale, postscale, out_rows, codec, parameter; splits as an int64 array.
    :param residuals: float32 arrays of the sizes of ``outs``, for codecs that keep a residual.
    """
    works = ffi.new("hvd_mxnet_work[]", len(names))
    each = zip(works, names, outs, details, sources, residuals)
    alive = [_fill(kind, *arguments) for arguments in each]
    if alive:
        call(lib.hvd_mxnet_push, _mxnet, works, len(alive))


class Holding:
    """One operation that reduces arrays in place and locks other arrays while it runs.

    :param described: a :class:`Described` for each of ``arrays``.
    :param held: a triple for each locked array, sorted by the last member: the NDArray; the
        ``hvd_memory *`` whose view contains it, or None; the number of the allreduce that sends
        this rank's writes to the view.
    """

    def __init__(self, described: List[Described], arrays, held) -> None:
        self._alive = described, arrays, held
        self._works = ffi.new("hvd_mxnet_work[]", len(described))
        for work, array, each in zip(self._works, arrays, described):
            work.tensor, work.out = each.tensor, _handle(each.name, array)
        self._held = ffi.new("hvd_mxnet_held[]", len(held))
        for kept, (array, memory, number) in zip(self._held, held):
            kept.array, kept.work = _handle("that is held", array), number
            kept.memory = ffi.NULL if memory is None else memory

    def push(self) -> None:
        """Push the operation; MXNet runs it when all arrays are free; errors as :func:`push`."""
        works, held = self._works, self._held
        call(lib.hvd_mxnet_push_holding, _mxnet, works, len(works), held, len(held))


def _fill(kind, work, name, out, details, source, residual):
    described = _describe(kind, name, **details)
    work.tensor, work.out = described[0], _handle(name, out)
    if source is not None:
        setattr(work, "in", _handle(name, source))
    if residual is not None:
        work.residual = _handle(name, residual)
    return described


class _Descriptions(ModuleState):
    """The C descriptions of recent calls. The C library copies a description at each push."""

    def begin(self) -> None:
        # descriptions of all kinds except allreduce
        self.of = functools.lru_cache(maxsize=_MOST_NAMES)(
            lambda kind, name, _of, **details: describe(kind, name, **details)
        )
        self.last: Dict[tuple, Described] = {}  # by (function that describes, tensor name)


_descriptions = _Descriptions()


def _describe(kind, name, splits=None, **details):
    """Describe a tensor, from a cache if ``splits`` is None."""
    if splits is None:
        try:
            return _descriptions.of(kind, name, getattr(name, "of", 0), **details)
        except TypeError:  # a detail, such as a list, has no hash: describe() raises the error
            pass
    return describe(kind, name, splits, **details)


def recent(make):
    """Decorate ``make(name, arguments) -> Described``: keep the last result for each name.

    Each training step makes the calls of the previous step again; lru_cache takes twice the time.
    """

    @functools.wraps(make)
    def last_or_new(name, arguments) -> Described:
        kept = _descriptions.last
        # make() raises the error for a name that is no string
        last = kept.get((make, name)) if isinstance(name, str) else None
        if last is None or last.arguments != arguments:
            if len(kept) >= _MOST_NAMES:
                kept.clear()
            last = kept[make, name] = make(name, arguments)
        return last

    return last_or_new


def describe_holding(name, settings: Settings, update=None) -> Described:
    """Return the C description of an allreduce for :class:`Holding`.

    :param update: an ``hvd_update *``, which the result keeps alive; or None.
    """
    members = {} if update is None else {"update": update}
    tensor, alive = describe(lib.HVD_ALLREDUCE, name, **settings._asdict(), **members)
    return Described(settings, tensor, name, [*alive, update])


describe_allreduce = recent(describe_holding)  # for :func:`push_in_place`


def validate(kind, name, array, **details) -> None:
    """Raise the error that :func:`push` would raise immediately for these arguments."""
    tensor, _alive = describe(kind, name, **details)
    call(lib.hvd_mxnet_validate, _mxnet, _handle(name, array), tensor)


def _handle(name, array):
    if not isinstance(array, _NDArray):
        raise _no_array(name, array)
    return ffi.cast(_POINTER, array.handle.value)


def _no_array(name, thing) -> ValueError:
    return ValueError(f"tensor '{name}': expected an MXNet NDArray, got {type(thing).__name__}")


def watch(arrays):
    """Return a function that tells if all operations pushed so far on the arrays have ended."""
    handles = [_handle("of an asynchronous call", array) for array in arrays]
    error = new_error()
    started = lib.hvd_mxnet_watch_start(_mxnet, handles, len(handles), error)
    if started == ffi.NULL:
        raise exception_of(error)
    watched = ffi.gc(started, lib.hvd_mxnet_watch_end)
    return lambda: bool(lib.hvd_mxnet_watch_done(watched))


def references(array) -> int:
    """Return how many arrays, views and operations of MXNet refer to the NDArray's memory."""
    return lib.hvd_mxnet_references(_handle("whose references are counted", array))


def submit_all() -> None:
    """Wait until MXNet's engine has submitted all pushed collectives, or makes no progress."""
    before, deadline = 0, 0.0
    while True:
        waiting = lib.hvd_mxnet_waiting(_mxnet)
        if waiting != before:  # the engine made progress, so extend the deadline
            before, deadline = waiting, time.monotonic() + at_exit.EXIT_PATIENCE_SECONDS
        if not waiting or time.monotonic() > deadline:
            return
        time.sleep(1e-3)


def _report_failed() -> None:
    """Print, without a traceback, the error of a failed operation that the script did not wait for.

    After a failure of the script print nothing: pending operations fail because the job ended.
    """
    try:
        mx.nd.waitall()
    except mx.MXNetError as error:
        if not script_end.failure():
            print(f"hvdlite: work was pending at exit: {error}", file=sys.stderr)


at_exit.at_end(wait=mx.nd.waitall, before=submit_all, after=_report_failed)
