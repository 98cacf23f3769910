"""The C library that jaxlib loads as its MPI, and the functions of the core that it needs.

``python -m hvdlite.jax.library`` prints the library's path, for MPITRAMPOLINE_LIB.
"""

import ctypes
import os
import sys
from typing import Any, Callable, List

from hvdlite.core import files

VARIABLE = "MPITRAMPOLINE_LIB"
PATH = files.shipped("_hvdlite_jax")
_Open = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.c_int, ctypes.POINTER(ctypes.c_char),
    ctypes.c_int,
)  # fmt: skip


def choose(must: bool = False) -> None:
    """Have jaxlib load the library, unless jaxlib has been loaded.

    :raises ImportError: it has been loaded without the library, and ``must``.
    """
    if PATH is not None and "jaxlib" not in sys.modules:
        os.environ[VARIABLE] = PATH
    if must and PATH is None:
        raise ImportError(
            "hvdlite's library for JAX is missing: run `make install`, or `pip install .`"
        )
    if must and os.environ.get(VARIABLE) != PATH:
        raise ImportError(
            f"JAX was imported before hvdlite.jax, without {VARIABLE}={PATH}: import hvdlite.jax "
            "before jax and before all that imports jax, or start the program by `hvdlite run`, "
            f"or export {VARIABLE}=$(python -m hvdlite.jax.library)"
        )


@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)
def core_function(name: bytes) -> int:
    """Return the address of a function of the core, for a C library that asks for it by name."""
    from hvdlite.core.native import address_of

    return address_of(name.decode())


class Library:
    """The loaded library, with the core's functions of this process.

    :param opened: opens a group of the core among these ranks and returns the core's number of it;
        a thread of XLA's calls it.
    """

    def __init__(self, rank: int, size: int, opened: Callable[[List[int]], int]) -> None:
        self._library: Any = ctypes.CDLL(PATH)
        self._open = _Open(_told(opened))  # kept alive, because C keeps its address
        self._library.hvdlite_jax_begin(core_function, rank, size, self._open)

    def expect(self, members: List[int], rank: int, color: int) -> None:
        """Announce the ranks of the communicator that XLA makes next; ``rank``: an index."""
        array = (ctypes.c_int * len(members))(*members)
        if self._library.hvdlite_jax_expect(array, len(members), rank, color):
            raise MemoryError(f"hvdlite.jax: no memory for a group of {len(members)} ranks")

    def expected(self, why: str = "") -> bool:
        """Tell whether XLA has made it. ``why`` it can't be used: its collectives raise that."""
        return bool(self._library.hvdlite_jax_expected(why.encode() if why else None))


def _told(opened: Callable[[List[int]], int]) -> Callable[..., int]:
    def call(members, size, text, room) -> int:
        try:
            return opened(members[:size])
        except BaseException as error:  # C gets the text, because it has no exceptions
            said = f"hvdlite.jax: {error}".encode()[: room - 1] + b"\0"
            ctypes.memmove(text, said, len(said))
            return -1

    return call


if __name__ == "__main__":
    print(PATH)
