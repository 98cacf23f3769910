"""Compiles the C++ part of the backend once for the installed PyTorch, and loads it.

PyTorch's interface for backends has no stable ABI. So the name of the compiled file contains
PyTorch's version and a hash of Python's ABI, PyTorch's headers, the sources and the compiler's
flags. If the ranks of a job lack a compiler, run ``python -m hvdlite.torch.backend.compiled``
before the job.
"""

import atexit
import importlib.machinery
import importlib.util
from pathlib import Path
from typing import Any, List

import torch

from hvdlite.core.module_state import ModuleState
from hvdlite.core.native import address_of
from hvdlite.machine.probe import TORCH_MODULE, torch_compiler, torch_stem
from hvdlite.training import compiled

_HERE = Path(__file__).parent
_SOURCES = sorted([*_HERE.glob("*.cpp"), *_HERE.glob("*.h")])
_NAME = "hvdlite.torch.backend.compiled"


class _Loaded(ModuleState):
    def begin(self) -> None:
        self.module: Any = None  # the Python module that backend.cpp defines


_loaded = _Loaded()


def load(bucket) -> Any:
    """Return the compiled module; compile it first if the cache lacks it.

    :param bucket: ``groups.bucket``, which makes memory for DistributedDataParallel.
    :raises RuntimeError: compiling failed, or another process has been compiling for too long.
    """
    if _loaded.module is not None:
        return _loaded.module
    spec = importlib.util.spec_from_file_location(TORCH_MODULE, build(compiled.PATIENCE))
    assert spec and spec.loader
    glue = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(glue)
    glue.use(address_of, bucket)
    atexit.register(glue.stop)
    _loaded.module = glue
    return glue


def build(patience: float) -> Path:
    """Return the path of the compiled file; if several processes call this, one compiles.

    :param patience: seconds to wait while another process compiles.
    """
    what = f"its backend for PyTorch {torch.__version__} (`python -m {_NAME}`)"
    abi = importlib.machinery.EXTENSION_SUFFIXES[0]  # not by sysconfig, whose import takes 2 ms
    sources = [*_SOURCES, *compiled.CORE_HEADERS, *_headers_of_torch()]
    return compiled.build(
        what, torch_stem(torch.__version__), [abi, *_flags()], sources, _command, patience
    )


def _headers_of_torch() -> List[Path]:
    """Return the headers that decide PyTorch's ABI. Builds of one version may differ in them."""
    include = Path(torch.__file__).parent / "include"
    c10d = include / "torch" / "csrc" / "distributed" / "c10d"
    names = "Backend.hpp", "Store.hpp", "Types.hpp", "Work.hpp"
    found = [*(c10d / name for name in names), include / "pybind11" / "detail" / "internals.h"]
    return [header for header in found if header.exists()]


def _flags() -> List[str]:
    """Return the compiler's flags, without paths."""
    # pybind11 shares PyTorch's types only with modules that have the same values of these macros
    names = "COMPILER_TYPE", "STDLIB", "BUILD_ABI"
    known = {name: getattr(torch._C, f"_PYBIND11_{name}", None) for name in names}
    return [
        *("-std=c++20", *compiled.FLAGS, "-DNDEBUG"),
        f"-DTORCH_EXTENSION_NAME={TORCH_MODULE}",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        *(f'-DPYBIND11_{name}="{value}"' for name, value in known.items() if value),
    ]


def _command() -> List[str]:
    """Return the compiler's command, without the output file."""
    # imported here, because cpp_extension takes 0.2 s to import and ranks rarely compile
    import sysconfig

    from torch.utils import cpp_extension

    of_python = sysconfig.get_paths()["include"]
    includes = [*cpp_extension.include_paths(), of_python, str(compiled.CSRC)]
    return [
        *torch_compiler(),
        *_flags(),
        *(f"-isystem{folder}" for folder in includes),
        str(_HERE / "backend.cpp"),
        *(f"-L{folder}" for folder in cpp_extension.library_paths()),
        *("-lc10", "-ltorch_cpu", "-ltorch_python"),
    ]


if __name__ == "__main__":
    print(build(compiled.PATIENCE))
