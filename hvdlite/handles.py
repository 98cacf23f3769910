"""Handles: what ``..._async`` calls return, for ``poll`` and ``synchronize``."""

import functools
from typing import TYPE_CHECKING, Any, Callable, Protocol, TypeVar


class Handle:
    """A collective that may be under way, of any library's arrays.

    :param poll: tells whether it is over.
    :param finish: waits for that, and returns the result or raises what went wrong.
    """

    def __init__(self, poll: Callable[[], bool], finish: Callable[[], Any]) -> None:
        self._poll = poll
        self._finish = finish
        self._over = False

    def then(self, function: Callable[[Any], Any]) -> "Handle":
        """Return a handle whose result is ``function`` of this one's."""
        return Handle(self.poll, lambda: function(self.synchronize()))

    def poll(self) -> bool:
        """Return at once whether it is over, well or not."""
        self._over = self._over or self._poll()
        return self._over

    def synchronize(self):
        """Wait, and return what the call without ``_async`` returns, or raise what it raises."""
        try:
            return self._finish()
        finally:
            self._over = True

    __call__ = synchronize  # as Horovod's scripts wait for sparse_allreduce_async of PyTorch


def poll(handle: Handle) -> bool:
    """Return at once whether the collective of an ``..._async`` call is over, well or not.

    :param handle: what the call has returned.
    """
    return handle.poll()


def synchronize(handle: Handle):
    """Wait for an ``..._async`` call; return the result, or raise what went wrong.

    :param handle: what the call has returned.
    :raises hvdlite.HvdliteError: of NumPy arrays; MXNetError of MXNet arrays.
    """
    return handle.synchronize()


def started(function: Callable, begin: Callable) -> Callable:
    """Return ``begin``, which takes the arguments of ``function``, as its asynchronous form."""
    name = function.__name__.rstrip("_")
    in_place = function.__name__[len(name) :]

    @functools.wraps(function, updated=())
    def start(*args, **kwargs) -> Handle:
        return begin(*args, **kwargs)

    start.__name__ = start.__qualname__ = f"{name}_async{in_place}"
    start.__annotations__ = {**function.__annotations__, "return": Handle}
    start.__doc__ = (
        f"Start :func:`{function.__name__}`; return a handle, for :func:`hvdlite.synchronize`.\n\n"
        "    Arguments and errors are the same; what is wrong with an argument is raised here.\n"
        "    The arrays must stay as they are until the work is done.\n    "
    )
    return start


if TYPE_CHECKING:  # Python has these since 3.10
    from typing_extensions import ParamSpec

    P = ParamSpec("P")
    T = TypeVar("T", covariant=True)

    class Waiting(Protocol[P, T]):
        """A function that waits, and the one that does not."""

        start: Callable[P, Handle]

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T: ...


def waiting(begin: "Callable[P, T]") -> "Waiting[P, T]":
    """Make a function that returns a handle wait for it; its ``start`` does not.

    The function is annotated with what the handle's result is.
    """

    @functools.wraps(begin)
    def function(*args, **kwargs):
        return begin(*args, **kwargs).synchronize()

    vars(function).update(start=started(begin, begin))
    return function  # type: ignore[return-value]
