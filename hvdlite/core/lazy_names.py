"""Lets a package import a name from the module that defines it when the name is first used."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence

from hvdlite.core.headers import rows, text_of

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing takes 2 ms
    from typing import Any


def lazy_names(
    package: dict[str, Any],
    defined_in: Mapping[str, Sequence[str]],
    submodules: Mapping[str, str],
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and ``__dir__`` of a package.

    :param package: its ``globals()``. The first use of a name stores the value there.
    :param defined_in: module -> the package's names that this module defines.
    :param submodules: name of an attribute -> the module that is its value.
    """
    module_of = {name: module for module, names in defined_in.items() for name in names}

    def getattr_(name: str) -> Any:
        if name in submodules:
            return importlib.import_module(submodules[name])
        if name not in module_of:
            raise AttributeError(f"module '{package['__name__']}' has no attribute '{name}'")
        value = package[name] = getattr(importlib.import_module(module_of[name]), name)
        return value

    return getattr_, lambda: sorted({*package, *module_of, *submodules})


# the operations of reductions
OPS = tuple(sorted(name for _, name in rows(text_of("base/types.h"), "OPS")))

# Names that do not depend on a framework's arrays. The packages of all frameworks have these names.
NEUTRAL = (
    *OPS, "HvdliteError", "ProcessSet",
    "add_process_set", "barrier", "ccl_built", "cross_rank", "cross_size", "cuda_built",
    "ddl_built", "global_process_set", "gloo_built", "gloo_enabled", "init", "is_homogeneous",
    "is_initialized", "local_rank", "local_size", "mpi_built", "mpi_enabled",
    "mpi_threads_supported", "nccl_built", "rank", "remove_process_set", "rocm_built", "run",
    "shutdown", "size", "start_timeline", "stats", "stop_timeline",
)  # fmt: skip
