"""Turns the C library's error codes into exceptions. Only this module imports the core library."""

import contextlib
import functools
import os
import re
import sys
import threading
from typing import Any, Dict, Iterator, Optional, Tuple

from hvdlite.core.error_text import text_of
from hvdlite.core.module_state import ModuleState

try:
    from hvdlite._hvdlite_core import ffi, lib  # type: ignore[import-not-found]
except ImportError as error:
    raise ImportError(
        f"hvdlite's C library cannot be loaded ({error}): run `make install`, or `pip install .`"
    ) from error


_CODES = ffi.typeof("hvd_code").elements


def kind_of(code: int) -> str:
    """Return an error's ``kind`` for its hvd_code."""
    return _CODES[code][4:].lower().replace("_", " ")


MISMATCH, STALLED = map(kind_of, (lib.HVD_MISMATCH, lib.HVD_STALLED))
FAILED, TRANSPORT = map(kind_of, (lib.HVD_FAILED, lib.HVD_TRANSPORT))
RANK_LEFT, RANK_DEAD = map(kind_of, (lib.HVD_RANK_LEFT, lib.HVD_RANK_DEAD))


class HvdliteError(RuntimeError):
    """A collective failed; the text names the tensor and the ranks.

    If MXNet is imported, the error is also an ``MXNetError``, which Horovod's scripts catch.

    The attributes, from ``fields``; an unknown attribute is None:

    * ``kind``: what went wrong, in a word or two: "mismatch", "rank left", "stalled", "failed",
      "transport", "rank dead", ...; docs/errors.md has all kinds.
    * ``tensor``: the name of the tensor.
    * ``rank``: the first rank that caused the failure; ``ranks``: a tuple of the first eight.
    * ``pid`` and ``host``: the process id and the host of ``rank``.
    """

    kind: Optional[str] = None
    tensor: Optional[str] = None
    ranks: Tuple[int, ...] = ()
    pid: Optional[int] = None
    host: Optional[str] = None

    def __new__(cls, *text, **fields):
        mxnet_error = getattr(sys.modules.get("mxnet.base"), "MXNetError", RuntimeError)
        return super().__new__(_kept.both(cls, mxnet_error), *text)

    def __init__(self, *text, **fields):
        super().__init__(*text)
        self.__dict__.update(fields)

    @property
    def rank(self) -> Optional[int]:
        """The first of ``ranks``."""
        return self.ranks[0] if self.ranks else None


class HvdliteValueError(HvdliteError, ValueError):
    """An argument is wrong, or the ranks' arguments do not fit together; also a ValueError."""


class HvdliteMemoryError(HvdliteError, MemoryError):
    """This rank has too little memory; also a MemoryError."""


class RankFailedError(HvdliteError):
    """A rank has died or is silent, so the job can't go on; every other rank raises this error.

    A silent rank is stopped or its host is lost. It has not answered for
    ``HVDLITE_DATA_TIMEOUT_SECONDS`` or ``HVDLITE_STALL_SHUTDOWN_TIME_SECONDS``.
    """

    kind = RANK_DEAD


def _as_both(kind: type, other: type) -> type:
    if issubclass(kind, other):
        return kind
    reduce = lambda self: (kind, self.args, self.__dict__)  # noqa: E731
    return type(kind.__name__, (kind, other), {"__module__": kind.__module__, "__reduce__": reduce})


# As in Horovod, a caller's mistake raises a ValueError. Every other error is a failure of the job.
_ERRORS = {
    lib.HVD_INVALID: HvdliteValueError,
    lib.HVD_UNSUPPORTED: HvdliteValueError,
    lib.HVD_NOT_INITIALIZED: HvdliteValueError,
    lib.HVD_DUPLICATE: HvdliteValueError,
    lib.HVD_NO_MEMORY: HvdliteMemoryError,
    lib.HVD_RANK_DEAD: RankFailedError,
}


# Horovod's programs look for these words in the error text.
_NOT_INITIALIZED = "Horovod has not been initialized; use hvd.init()."


BRIEFLY = lib.HVD_WAIT_MS / 1000  # seconds that one call in C waits, before Python handles Ctrl-C


def new_error():
    return ffi.new("hvd_error *")


def exception_of(error) -> HvdliteError:
    """Return the exception for an ``hvd_error *`` that a failed call has filled."""
    text = _text(error.text)
    if error.code == lib.HVD_NOT_INITIALIZED and os.environ.get("HVDLITE_AS_HOROVOD"):
        text = _NOT_INITIALIZED
    return _ERRORS.get(error.code, HvdliteError)(text, **_fields(error))


def _text(buffer) -> str:
    return ffi.string(buffer).decode(errors="replace")


def _fields(error) -> Dict[str, Any]:
    return {
        "kind": kind_of(error.code),
        "tensor": _text(error.tensor) or None,
        "ranks": tuple(error.blamed[0 : min(error.nblamed, lib.HVD_MAX_BLAMED)]),
        "pid": error.pid or None,
        "host": _text(error.host) or None,
    }


def failure_of(error: BaseException) -> Optional[HvdliteError]:
    """Return the failure of a collective that caused an exception; None: another cause.

    The ``MXNetError`` that MXNet raises at a wait has only a text. The failure has attributes::

        except mx.MXNetError as error:
            failure = hvd.failure_of(error)
            if failure and failure.rank is not None: ...
    """
    if isinstance(error, HvdliteError):
        return error
    # The last hash is from this process. Earlier hashes are from quoted texts of other ranks.
    mark, kept = _text(lib.hvd_error_mark), new_error()
    hashes = re.findall(re.escape(mark) + r"([0-9a-f]{8})\]", text_of(error))
    found = hashes and lib.hvd_kept_failure(int(hashes[-1], 16), kept)
    return exception_of(kept) if found else None


@contextlib.contextmanager
def failures_kept() -> Iterator[None]:
    """Apply :func:`keep_failure` to an HvdliteError that the block raises."""
    try:
        yield
    except HvdliteError as error:
        raise keep_failure(error) from None


def keep_failure(error: HvdliteError) -> HvdliteError:
    """Return the error with a mark in its text, by which :func:`failure_of` finds the error.

    Callbacks need the mark if their framework keeps only the text of an exception.
    """
    kept, texts = new_error(), {"text": str(error), "tensor": error.tensor, "host": error.host}
    kept.code = next((code for code in _CODES if kind_of(code) == error.kind), lib.HVD_INVALID)
    for field, text in texts.items():
        buffer = getattr(kept, field)
        cut = (text or "").encode()[: len(buffer) - 1]
        ffi.memmove(buffer, cut, len(cut))
    kept.pid, kept.nblamed = error.pid or 0, len(error.ranks)
    kept.blamed = error.ranks
    lib.hvd_keep_failure(kept)
    return type(error)(_text(kept.text), **vars(error))


class _OfThread(threading.local):
    def __init__(self) -> None:  # in each thread
        self.error = new_error()


class _Kept(ModuleState):
    def begin(self) -> None:
        self.of_thread = _OfThread()
        self.both = functools.lru_cache(maxsize=None)(_as_both)


_kept = _Kept()


def own_error():
    """Return this thread's ``hvd_error *``; the thread's next call reuses it."""
    return _kept.of_thread.error


def c_text(text: str, what: str):
    """Return the text as a ``char[]``, in UTF-8.

    :param what: how an error describes the text, such as "the tensor name".
    :raises ValueError: the text has a NUL, which would end it in C, or half a surrogate pair.
    """
    if "\0" in text:
        raise ValueError(f"{what} {text!r} has a NUL character: leave it out")
    try:
        return ffi.new("char[]", text.encode())
    except UnicodeEncodeError:
        raise ValueError(
            f"{what} {text!r} has a character that UTF-8 can't encode: leave the character out"
        ) from None


def address_of(name: str) -> int:
    """Return the address of a function of the core, for another C library that calls it."""
    return int(ffi.cast("uintptr_t", ffi.addressof(lib, name)))


def call(function, *args) -> None:
    """Call a C function whose last argument is an ``hvd_error *``; raise the reported error."""
    error = own_error()
    if function(*args, error):  # HVD_OK is 0
        raise exception_of(error)
