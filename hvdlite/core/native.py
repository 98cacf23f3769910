"""The only importer of the C library, and the only place that turns its codes into exceptions."""

import functools
import re
import sys
import threading

from hvdlite.core import mpi

ffi, lib = mpi.load()


class HvdliteError(RuntimeError):
    """A collective failed; the text names the tensor and the ranks.

    If MXNet is imported it is an ``MXNetError`` as well, because scripts for Horovod catch those.
    """

    def __new__(cls, *text):
        mxnet_error = getattr(sys.modules.get("mxnet.base"), "MXNetError", RuntimeError)
        return super().__new__(_as_both(cls, mxnet_error), *text)


class HvdliteValueError(HvdliteError, ValueError):
    """An argument is wrong, or the ranks' arguments do not fit together; a ValueError as well."""


class RankFailedError(HvdliteError):
    """A rank's process has died or is silent, so the job can't go on; every other rank raises it.

    Silent is a rank that is stopped, or whose host is gone: it has not answered within
    ``HVDLITE_DATA_TIMEOUT_SECONDS`` or ``HVDLITE_STALL_SHUTDOWN_TIME_SECONDS``.

    ``rank``, ``pid`` and ``host`` say which process it was; None where the text does not.
    """

    def __init__(self, *text):
        super().__init__(*text)
        found = _DEAD.search(str(text[0])) if text else None
        self.rank = int(found["rank"]) if found else None
        self.pid = int(found["pid"]) if found else None
        self.host = found["host"] if found else None


_DEAD = re.compile(
    r"rank (?P<rank>\d+) \(process (?P<pid>\d+) on host (?P<host>[^ )]+)\) "
    r"(is dead|has not answered)"
)


@functools.lru_cache(maxsize=None)
def _as_both(kind: type, other: type) -> type:
    if issubclass(kind, other):
        return kind
    names = {"__module__": kind.__module__, "__reduce__": lambda self: (kind, self.args)}
    return type(kind.__name__, (kind, other), names)


# A mistake of the caller is a ValueError, as in Horovod; all else is a failure of the job.
_ERRORS = {
    lib.HVD_INVALID: HvdliteValueError,
    lib.HVD_UNSUPPORTED: HvdliteValueError,
    lib.HVD_NOT_INITIALIZED: HvdliteValueError,
    lib.HVD_DUPLICATE: HvdliteValueError,
    lib.HVD_NO_MEMORY: MemoryError,
    lib.HVD_RANK_DEAD: RankFailedError,
}


def new_error():
    """Return an ``hvd_error *`` for a call to fill."""
    return ffi.new("hvd_error *")


def exception_of(error) -> Exception:
    """Return the exception for an ``hvd_error *`` that a failed call has filled."""
    return _ERRORS.get(error.code, HvdliteError)(ffi.string(error.text).decode(errors="replace"))


_own = threading.local()


def own_error():
    """Return this thread's ``hvd_error *``; the thread's next call reuses it."""
    try:
        return _own.error
    except AttributeError:
        _own.error = new_error()
        return _own.error


def c_text(text: str, what: str):
    """Return the text as a ``char[]``, in UTF-8.

    :param what: what an error calls the text, as in "the tensor name".
    :raises ValueError: the text has a NUL, where C would cut it.
    """
    if "\0" in text:
        raise ValueError(f"{what} {text!r} has a NUL character: leave it out")
    return ffi.new("char[]", text.encode())


def call(function, *args) -> None:
    """Call a C function whose last argument is an ``hvd_error *``; raise the error it reports."""
    error = own_error()
    if function(*args, error):  # HVD_OK is 0
        raise exception_of(error)
