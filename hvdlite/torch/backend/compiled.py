"""Compiles the C++ part of the backend for the installed PyTorch, once, and loads it.

PyTorch's interface for backends has no stable ABI. So the name of the compiled file has PyTorch's
version and a hash of Python's ABI, the sources and the compiler's flags. The file lies in
``$HVDLITE_TORCH_CACHE``, by default ``~/.cache/hvdlite``. ``python -m
hvdlite.torch.backend.compiled`` compiles ahead, for ranks without a compiler.
"""

import atexit
import contextlib
import fcntl
import functools
import hashlib
import importlib.util
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any, Iterator, List

import torch

from hvdlite.core import files
from hvdlite.core.native import ffi, lib
from hvdlite.launch.probe import TORCH_CACHE, TORCH_MODULE, torch_compiler, torch_file

_HERE = Path(__file__).parent
_CSRC = _HERE.parents[1] / "csrc"
_SOURCES = sorted([*_HERE.glob("*.cpp"), *_HERE.glob("*.h")])
_HEADERS = [_CSRC / name for name in ("hvd.h", "base/error.h", "base/types.h")]
_PATIENCE = 600.0  # seconds that a rank waits at least for the rank that compiles


@functools.lru_cache(maxsize=None)
def load(bucket) -> Any:
    """Return the compiled module; compile it first if the cache lacks it.

    :param bucket: makes memory for DistributedDataParallel, as ``groups.bucket`` does.
    :raises RuntimeError: compiling failed, or another process has been compiling for too long.
    """
    spec = importlib.util.spec_from_file_location(TORCH_MODULE, build(_PATIENCE))
    assert spec and spec.loader
    glue = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(glue)
    names = "start", "finish", "watch", "drop", "plan", "run", "source", "give_up"
    functions = [ffi.addressof(lib, f"hvd_{name}") for name in names]
    glue.use([int(ffi.cast("uintptr_t", function)) for function in functions], bucket)
    atexit.register(glue.stop)
    return glue


def build(patience: float) -> Path:
    """Return the path of the compiled file; if several processes call this, one compiles.

    :param patience: seconds to wait while another process compiles.
    """
    path = Path(torch_file(torch.__version__, _hash_of(_flags())))
    _check_folder(path.parent)
    if not files.refuse_strangers(path):
        with _locked(path.with_suffix(".lock"), patience):
            if not path.exists():
                _compile(_command(), path)
    return path


def _check_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        files.refuse_strangers(folder)  # they could put their code there
    except OSError as error:
        raise RuntimeError(
            f"hvdlite: no folder for the compiled backend of PyTorch ({error}): set "
            f"{TORCH_CACHE} to a folder that can be written to"
        ) from error


def _flags() -> List[str]:
    """Return the compiler and its flags, without paths."""
    names = "COMPILER_TYPE", "STDLIB", "BUILD_ABI"  # pybind11 matches PyTorch's types by these
    known = {name: getattr(torch._C, f"_PYBIND11_{name}", None) for name in names}
    return [
        *torch_compiler(),
        *("-std=c++20", "-O2", "-ffp-contract=off", "-DNDEBUG", "-fvisibility=hidden"),
        *("-shared", "-fPIC", "-pthread"),
        f"-DTORCH_EXTENSION_NAME={TORCH_MODULE}",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        *(f'-DPYBIND11_{name}="{value}"' for name, value in known.items() if value),
    ]


def _command() -> List[str]:
    """Return the compiler's command, without the output file."""
    from torch.utils import cpp_extension  # takes 0.2 s, and a rank rarely compiles

    includes = [*cpp_extension.include_paths(), sysconfig.get_paths()["include"], str(_CSRC)]
    return [
        *_flags(),
        *(f"-isystem{folder}" for folder in includes),
        str(_HERE / "backend.cpp"),
        *(f"-L{folder}" for folder in cpp_extension.library_paths()),
        *("-lc10", "-ltorch_cpu", "-ltorch_python"),
    ]


def _hash_of(flags: List[str]) -> str:
    texts = [file.read_bytes() for file in [*_SOURCES, *_HEADERS]]
    about = [sysconfig.get_config_var("SOABI") or "", *flags]
    return hashlib.sha256(b"\0".join([*texts, *map(str.encode, about)])).hexdigest()[:16]


@contextlib.contextmanager
def _locked(path: Path, patience: float) -> Iterator[None]:
    """Hold the lock of this file; the end of the process releases the lock."""
    until = time.monotonic() + patience
    with files.open_named(path) as file:
        while not _try_lock(file):
            if time.monotonic() > until:
                raise RuntimeError(
                    f"hvdlite: another process has been compiling its backend of PyTorch for "
                    f"{patience:.0f} seconds; it holds {path}"
                )
            time.sleep(0.1)
        yield


def _try_lock(file) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _compile(command: List[str], path: Path) -> None:
    if shutil.which(command[0]) is None:
        raise RuntimeError(
            f"hvdlite: no C++ compiler ({command[0]}): its backend is compiled once for each "
            "version of PyTorch. Install one (`apt-get install g++`) or name it by CXX; or run "
            "`python -m hvdlite.torch.backend.compiled` where there is one, with this PyTorch, and "
            f"set {TORCH_CACHE} to a folder that both can read"
        )
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:  # a crash leaves no half file
        made = Path(folder, path.name)
        done = subprocess.run([*command, "-o", str(made)], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(
                f"hvdlite: its backend can't be compiled for PyTorch {torch.__version__}: "
                f"`{shlex.join(command)}` failed:\n{done.stderr[-4000:]}"
            )
        made.replace(path)


if __name__ == "__main__":
    print(build(_PATIENCE))
