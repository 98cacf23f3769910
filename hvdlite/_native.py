"""The C library for the rest of the package: its only importer, and the one check of its codes."""

import functools
import sys
import threading

from hvdlite import _mpi

ffi, lib = _mpi.load()


class HvdliteError(RuntimeError):
    """Work on several ranks that could not be done; the text names the tensor and the ranks.

    Where MXNet is imported it is an ``MXNetError``, too, which scripts for Horovod catch.
    """

    def __new__(cls, *text):
        mxnet_error = getattr(sys.modules.get("mxnet.base"), "MXNetError", RuntimeError)
        return super().__new__(_as_both(cls, mxnet_error), *text)


class HvdliteValueError(HvdliteError, ValueError):
    """An argument, or what the ranks bring together, that can't be right; a ValueError, too."""


@functools.lru_cache(maxsize=None)
def _as_both(kind: type, other: type) -> type:
    if issubclass(kind, other):
        return kind
    names = {"__module__": kind.__module__, "__reduce__": lambda self: (kind, self.args)}
    return type(kind.__name__, (kind, other), names)


# What the caller got wrong is a ValueError, as in Horovod; all else is the job's.
_ERRORS = {
    lib.HVD_INVALID: HvdliteValueError,
    lib.HVD_UNSUPPORTED: HvdliteValueError,
    lib.HVD_NOT_INITIALIZED: HvdliteValueError,
    lib.HVD_DUPLICATE: HvdliteValueError,
    lib.HVD_NO_MEMORY: MemoryError,
}


def new_error():
    """Return an ``hvd_error *`` for a call to fill."""
    return ffi.new("hvd_error *")


def exception_of(error) -> Exception:
    """Return what to raise for an ``hvd_error *`` that a failed call has filled."""
    return _ERRORS.get(error.code, HvdliteError)(ffi.string(error.text).decode(errors="replace"))


_own = threading.local()


def own_error():
    """Return this thread's ``hvd_error *``, which its next call may fill again."""
    try:
        return _own.error
    except AttributeError:
        _own.error = new_error()
        return _own.error


def c_text(text: str, what: str):
    """Return the text as a ``char[]``, in UTF-8.

    :param what: what the error calls it, "the tensor name".
    :raises ValueError: there is a NUL in it, where C would cut it.
    """
    if "\0" in text:
        raise ValueError(f"{what} {text!r} has a NUL character in it: leave that out")
    return ffi.new("char[]", text.encode())


def call(function, *args) -> None:
    """Call a C function whose last argument is an ``hvd_error *``; raise what it reports."""
    error = own_error()
    if function(*args, error):  # HVD_OK is 0
        raise exception_of(error)
