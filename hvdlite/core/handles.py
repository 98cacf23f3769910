"""The handles that ``..._async`` calls return, for ``poll`` and ``synchronize``."""

import functools
import os
import threading
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional, Protocol, TypeVar

from hvdlite.core.arguments import wrong
from hvdlite.core.native import BRIEFLY, HvdliteValueError


class Handle:
    """A started collective, on arrays of any library.

    Several threads may use a handle, also repeatedly: all get the same result or error. A forked
    child gets the result or error that was known at the fork; otherwise an error is raised.

    :param poll: returns True if the collective has ended.
    :param finish: waits for the end and returns the result or raises the error. ``finish`` is
        called once, and called again if Ctrl-C has interrupted it.
    """

    def __init__(self, poll: Callable[[], bool], finish: Callable[[], Any]) -> None:
        self._poll = poll
        self._finish = finish
        # reentrant, because a signal handler may wait for the handle in the same thread
        self._lock = threading.RLock()
        self._outcome: Optional[_Outcome] = None
        self._process = os.getpid()

    def then(self, function: Callable[[Any], Any]) -> "Handle":
        """Return a handle whose result is ``function(result of this handle)``."""
        return Handle(self.poll, lambda: function(self.synchronize()))

    def poll(self) -> bool:
        """Return True if the collective has ended, with a result or an error. Do not wait."""
        return self._outcome is not None or self._is_inherited() or self._poll()

    def synchronize(self):
        """Wait for the collective's end; return its result or raise its error."""
        outcome = self._outcome or self._wait()
        if outcome.error is not None:
            raise outcome.error
        return outcome.result

    # Horovod's scripts call the result of PyTorch's sparse_allreduce_async to wait for it
    __call__ = synchronize

    def _wait(self) -> "_Outcome":
        if self._is_inherited():  # a thread that does not exist in this child may hold the lock
            raise HvdliteValueError(
                f"the handle belongs to process {self._process}, and this process was forked from "
                "it later: wait for the handle in the parent process"
            )
        while not self._lock.acquire(timeout=BRIEFLY):
            pass
        try:
            self._outcome = self._outcome or _outcome_of(self._finish)
        finally:
            self._lock.release()
        return self._outcome

    def _is_inherited(self) -> bool:
        return self._process != os.getpid()


class _Outcome(NamedTuple):
    result: Any
    error: Optional[Exception]


def _outcome_of(finish: Callable[[], Any]) -> _Outcome:
    try:
        return _Outcome(finish(), None)
    except Exception as error:
        return _Outcome(None, error)


def ended(result) -> Handle:
    return Handle(lambda: True, lambda: result)


def poll(handle: Handle) -> bool:
    """Return True if the collective has ended, with a result or an error. Do not wait.

    :param handle: returned by an ``..._async`` call.
    :raises ValueError: this is not a handle.
    """
    return _check(handle).poll()


def synchronize(handle: Handle):
    """Wait for a collective; return its result or raise its error.

    :param handle: returned by an ``..._async`` call.
    :raises ValueError: this is not a handle.
    :raises hvdlite.HvdliteError: the collective failed; for MXNet arrays an MXNetError.
    """
    return _check(handle).synchronize()


def _check(handle: Handle) -> Handle:
    if not isinstance(handle, Handle):
        raise wrong("handle", handle, "what an ..._async call has returned")
    return handle


def started(function: Callable, begin: Callable) -> Callable:
    """Return ``begin`` as the asynchronous form of ``function``; both take the same arguments."""
    name = function.__name__.rstrip("_")
    in_place = function.__name__[len(name) :]

    @functools.wraps(function, updated=())
    def start(*args, **kwargs) -> Handle:
        return begin(*args, **kwargs)

    start.__name__ = start.__qualname__ = f"{name}_async{in_place}"
    start.__annotations__ = {**function.__annotations__, "return": Handle}
    start.__doc__ = (
        f"Start :func:`{function.__name__}`; return a handle, for :func:`hvdlite.synchronize`.\n\n"
        "    Arguments and errors are the same; a wrong argument raises here.\n"
        "    Do not change the arrays until the work is done.\n    "
    )
    return start


if TYPE_CHECKING:  # typing has ParamSpec since Python 3.10
    from typing_extensions import ParamSpec

    P = ParamSpec("P")
    T = TypeVar("T", covariant=True)

    class Waiting(Protocol[P, T]):
        """A function that waits; its attribute ``start`` returns a handle without waiting."""

        start: Callable[P, Handle]

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T: ...


def waiting(begin: "Callable[P, T]") -> "Waiting[P, T]":
    """Return a function that waits for the handle that ``begin`` returns.

    The function's attribute ``start`` does not wait. ``begin`` has the result's type as annotation.
    """

    @functools.wraps(begin)
    def function(*args, **kwargs):
        return begin(*args, **kwargs).synchronize()

    vars(function).update(start=started(begin, begin))
    return function  # type: ignore[return-value]
