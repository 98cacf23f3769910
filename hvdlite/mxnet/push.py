"""Pushes collectives to MXNet's engine: the only caller of ``csrc/mxnet/push.c``."""

import functools
import itertools
import os
import re
import sys
import time
from typing import Any, List, NamedTuple

import mxnet as mx

from hvdlite import job
from hvdlite.core.collectives import describe
from hvdlite.core.native import call, exception_of, ffi, find_failures_by, lib, new_error, own_error
from hvdlite.exit import script_end

IS_MXNET_1 = mx.__version__.startswith("1.")


def _open():
    # MXNet 2.0.0b1 gave asynchronous functions a fourth argument; the versions before had three.
    four = not IS_MXNET_1 and not re.match(r"2\.0\.0(a|b0)", mx.__version__)
    naive = os.environ.get("MXNET_ENGINE_TYPE") == "NaiveEngine"
    library = ffi.new("hvd_mxnet **")
    path = mx.libinfo.find_lib_path()[0].encode()
    call(lib.hvd_mxnet_open, library, path, 4 if four else 3, naive)
    return library[0]


_mxnet = _open()
_NDArray = mx.nd.NDArray  # looked up once
_push, _push_in_place = lib.hvd_mxnet_push, lib.hvd_mxnet_push_in_place
_cast, _POINTER = ffi.cast, ffi.typeof("void *")
_NONE = itertools.repeat(None)  # one None for each tensor
_MOST_NAMES = 8192  # names whose descriptions are kept


class Settings(NamedTuple):
    """What the allreduces of one trainer or call have in common, whatever their tensors."""

    op: int
    prescale: float
    postscale: float
    priority: int
    group: int
    states: int = 0  # a digest of the states that the optimizer has just loaded


class Described(NamedTuple):
    """An allreduce of one name as the C library takes it, kept for the next training step."""

    arguments: tuple  # what it was made from; other arguments need a new description
    tensor: Any  # hvd_tensor *
    name: str
    alive: List[Any]  # keeps what the tensor points to


def push_in_place(described: Described, array) -> None:
    """Push an allreduce like :func:`push`, in less time: each gradient passes here."""
    if not isinstance(array, _NDArray):
        raise _no_array(described.name, array)
    error = own_error()
    if _push_in_place(_mxnet, described.tensor, array.handle.value, error):
        raise exception_of(error)


class InPlace:
    """Several allreduces in place, described once, that each step repeats as one operation."""

    def __init__(self, names, settings: Settings) -> None:
        self._described = [describe_allreduce(name, settings) for name in names]
        self._works = ffi.new("hvd_mxnet_work[]", len(names))
        for work, each in zip(self._works, self._described):
            work.tensor = each.tensor

    def push(self, arrays) -> None:
        """Push the allreduces on these arrays; errors as for :func:`push`."""
        for work, array, each in zip(self._works, arrays, self._described):
            if not isinstance(array, _NDArray):
                raise _no_array(each.name, array)
            work.out = _cast(_POINTER, array.handle.value)
        error = own_error()
        if _push(_mxnet, self._works, len(self._works), error):
            raise exception_of(error)


def push(kind, names, outs, details, sources=_NONE, residuals=_NONE) -> None:
    """Push collectives as one operation: in place in the NDArrays ``outs``, or from ``sources``.

    Returns at once. MXNet's engine submits them together, once all their arrays are free. A wrong
    argument raises here, and nothing is pushed. A later failure is an MXNetError, which MXNet
    raises at the first wait for any of ``outs``.

    :param details: of each, members of ``hvd_tensor``: priority, op, root, group, prescale,
        postscale, out_rows, codec, parameter; splits as an int64 array.
    :param residuals: float32 arrays of the same sizes, for codecs that need one; not ``outs``.
    """
    works = ffi.new("hvd_mxnet_work[]", len(names))
    each = zip(works, names, outs, details, sources, residuals)
    alive = [_fill(kind, *arguments) for arguments in each]
    if alive:
        call(lib.hvd_mxnet_push, _mxnet, works, len(alive))


class Holding:
    """Allreduces in place by one operation that also holds other arrays; made once.

    :param described: a :class:`Described` for each of ``arrays``.
    :param held: triples: an NDArray; the ``hvd_memory *`` in whose view the NDArray lies, or None;
        the number of the allreduce that shares what this rank has written to the view. The triples
        are sorted by this number.
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
        """Push the operation, which MXNet runs when all arrays are free; errors as :func:`push`."""
        works, held = self._works, self._held
        call(lib.hvd_mxnet_push_holding, _mxnet, works, len(works), held, len(held))


def describe_holding(name: str, settings: Settings, update=None) -> Described:
    """Describe an allreduce for :class:`Holding`; ``update``: an ``hvd_update *``, kept alive."""
    members = {} if update is None else {"update": update}
    tensor, alive = describe(lib.HVD_ALLREDUCE, name, **settings._asdict(), **members)
    return Described(settings, tensor, name, [*alive, update])


def _fill(kind, work, name, out, details, source, residual):
    described = _describe(kind, name, **details)
    work.tensor, work.out = described[0], _handle(name, out)
    if source is not None:
        setattr(work, "in", _handle(name, source))
    if residual is not None:
        work.residual = _handle(name, residual)
    return described


def _describe(kind, name, splits=None, **details):
    """Describe a tensor; take the description from the cache if the last step had it."""
    if splits is None:
        try:
            return _described(kind, name, getattr(name, "of", 0), **details)
        except TypeError:  # a detail has no hash, such as a list; describe() then raises
            pass
    return describe(kind, name, splits, **details)


@functools.lru_cache(maxsize=_MOST_NAMES)  # may be shared, because C copies the description
def _described(kind, name, _of, **details):
    return describe(kind, name, **details)


def recent(make):
    """Decorate ``make(name, arguments) -> Described``: keep the last result for each name.

    A training step repeats the calls of the step before. lru_cache takes twice as long for them.
    """
    made = {}

    @functools.wraps(make)
    def last_or_new(name, arguments) -> Described:
        last = made.get(name) if isinstance(name, str) else None  # otherwise make() raises
        if last is None or last.arguments != arguments:
            if len(made) >= _MOST_NAMES:
                made.clear()
            last = made[name] = make(name, arguments)
        return last

    return last_or_new


@recent
def describe_allreduce(name, settings: Settings) -> Described:
    """Return the description that :func:`push_in_place` takes."""
    tensor, alive = describe(lib.HVD_ALLREDUCE, name, **settings._asdict())
    return Described(settings, tensor, name, alive)


def validate(kind, name, array, **details) -> None:
    """Raise the error that :func:`push` would raise at the call, without pushing."""
    tensor, _alive = describe(kind, name, **details)
    call(lib.hvd_mxnet_validate, _mxnet, _handle(name, array), tensor)


def _handle(name, array):
    if not isinstance(array, _NDArray):
        raise _no_array(name, array)
    return ffi.cast(_POINTER, array.handle.value)


def _no_array(name, thing) -> ValueError:
    return ValueError(f"tensor '{name}': expected an MXNet NDArray, got {type(thing).__name__}")


def watch(arrays):
    """Return a function that tells whether the operations now pushed on the arrays have ended."""
    handles = [_handle("of an asynchronous call", array) for array in arrays]
    error = new_error()
    started = lib.hvd_mxnet_watch_start(_mxnet, handles, len(handles), error)
    if started == ffi.NULL:
        raise exception_of(error)
    watched = ffi.gc(started, lib.hvd_mxnet_watch_end)
    return lambda: bool(lib.hvd_mxnet_watch_done(watched))


def _failure_of(raised: BaseException):
    """Return the failure whose text MXNet has raised; None: this is another error."""
    error = new_error()
    if type(raised) is not mx.MXNetError:
        return None
    text = str(raised).partition("\0")[0].encode(errors="replace")
    return exception_of(error) if lib.hvd_mxnet_failure_of(_mxnet, text, error) else None


find_failures_by(_failure_of)


def references(array) -> int:
    """Return how many arrays, views and operations of MXNet refer to the NDArray's memory."""
    return lib.hvd_mxnet_references(_handle("whose references are counted", array))


def submit_all() -> None:
    """Wait until MXNet's engine has submitted all pushed work; stop if it makes no progress."""
    before, deadline = 0, 0.0
    while True:
        waiting = lib.hvd_mxnet_waiting(_mxnet)
        if waiting != before:  # there was progress, so wait longer
            before, deadline = waiting, time.monotonic() + job.EXIT_PATIENCE_SECONDS
        if not waiting or time.monotonic() > deadline:
            return
        time.sleep(1e-3)


def _report_failed() -> None:
    """Print the error of failed work that the script never waited for, without a traceback.

    If the script has failed, work that waited fails because the job has ended; that is no cause.
    """
    try:
        mx.nd.waitall()
    except mx.MXNetError as error:
        if not script_end.failure():
            print(f"hvdlite: work was pending at exit: {error}", file=sys.stderr)


job.at_end(wait=mx.nd.waitall, before=submit_all, after=_report_failed)
