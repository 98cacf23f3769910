"""The C library that jaxlib loads as its MPI, and the functions of the core that it needs.

``python -m hvdlite.jax.library`` prints the library's path, for MPITRAMPOLINE_LIB.
"""

import ctypes
import os
import sys

from hvdlite.machine import files

VARIABLE = "MPITRAMPOLINE_LIB"
PATH = files.shipped("_hvdlite_jax")


def choose(must: bool = False) -> None:
    """Have jaxlib load the library, unless jaxlib has been loaded.

    :raises ImportError: it has been loaded without the library, and ``must``.
    """
    if PATH is None:
        if must:
            raise ImportError("hvdlite's library for JAX is missing: run `make install`")
        return
    if "jaxlib" not in sys.modules:
        os.environ[VARIABLE] = PATH
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


if __name__ == "__main__":
    print(PATH)
