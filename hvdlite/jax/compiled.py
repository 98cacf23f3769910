"""Compiles the custom calls of XLA for the installed jaxlib, once."""

import os
import shlex
from pathlib import Path
from typing import List

import jax
import jaxlib

from hvdlite.training import compiled

_HERE = Path(__file__).parent
_CSRC = _HERE.parent / "csrc"
_SOURCES = [_HERE / name for name in ("calls.c", "core.h")]
_HEADERS = [_CSRC / name for name in ("functions.h", "hvd.h", "base/error.h", "base/types.h")]
_FLAGS = ("-std=c11", "-O2", "-fvisibility=hidden", "-shared", "-fPIC", "-pthread")


def build() -> Path:
    """Return the compiled file.

    :raises RuntimeError: as ``training.compiled.build``.
    """
    what = f"its calls for jaxlib {jaxlib.__version__} (`python -m hvdlite.jax.compiled`)"
    stem = f"hvdlite_jax-jaxlib{jaxlib.__version__}"
    return compiled.build(what, stem, [*_compiler(), *_FLAGS], [*_SOURCES, *_HEADERS], _command)


def _compiler() -> List[str]:
    return shlex.split(os.environ.get("CC", "cc"))


def _command() -> List[str]:
    folders = [f"-I{_CSRC}", f"-I{_HERE}", f"-isystem{jax.ffi.include_dir()}"]
    return [*_compiler(), *_FLAGS, *folders, str(_HERE / "calls.c")]


if __name__ == "__main__":
    print(build())
