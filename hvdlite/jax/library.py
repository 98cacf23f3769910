"""Makes jaxlib load hvdlite's C library as its MPI. As a program, prints the library's path."""

import os
import sys

from hvdlite.machine import files

VARIABLE = "MPITRAMPOLINE_LIB"
PATH = files.shipped("_hvdlite_jax")


def choose(must: bool = False) -> None:
    """Make jaxlib load the library, unless jaxlib has been loaded already.

    :raises ImportError: with ``must``, if jaxlib was loaded without the library.
    """
    if PATH and "jaxlib" not in sys.modules:
        os.environ[VARIABLE] = PATH
    if must and os.environ.get(VARIABLE) != PATH:
        raise ImportError(
            f"JAX was imported before hvdlite.jax, without {VARIABLE}={PATH}: import hvdlite.jax "
            "before jax and before libraries that import jax, or start the program by `hvdlite "
            f"run`, or export {VARIABLE}=$(python -m hvdlite.jax.library)"
        )


if __name__ == "__main__":
    print(PATH)
