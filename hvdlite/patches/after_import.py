"""Changes modules of other packages when any code imports them: mpi4py and torch.compile.

``mxnet_import`` changes MXNet.
"""

from __future__ import annotations

import os
import sys

from hvdlite.core import member

TYPE_CHECKING = False
if TYPE_CHECKING:  # not at run time, because importing typing takes 2 ms
    from collections.abc import Callable
    from typing import Any

# The module with torch.compile's rules. hvdlite itself does not import it, to save a second.
_COMPILES = "torch._dynamo.trace_rules"


class AfterImport:
    """An import hook: when a module is imported, ``execute`` is called instead of its loader.

    :param execute: called with the module and the function that runs the module's code.
    """

    def __init__(self, name: str, execute: Callable[[Any, Callable], None]) -> None:
        self._name, self._execute = name, execute

    def find_spec(self, fullname, path=None, target=None):
        if fullname != self._name:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next(filter(None, specs), None)
        if spec and spec.loader:
            code = spec.loader.exec_module
            spec.loader.exec_module = lambda module: self._execute(module, code)
        return spec


def keep_mpi_from_children() -> None:
    """In a child process of a rank, make the import of mpi4py.MPI not initialize MPI.

    A child inherits the launcher's variables of its rank, so MPI_Init would wait for a second
    process of this rank. Each worker of spawn or forkserver runs the imports of the script again.
    """
    is_launched = member.has_launcher_of_mpi(os.environ)
    if not member.is_worker() and (not is_launched or member.has_launcher_of_mpi()):
        return
    if sys.modules.get("mpi4py"):
        sys.modules["mpi4py"].rc.initialize = False
    else:
        sys.meta_path.insert(0, AfterImport("mpi4py", _leave_mpi_to_init))


def _leave_mpi_to_init(mpi4py, code) -> None:
    code(mpi4py)
    mpi4py.rc.initialize = False


def keep_from_torch_compile() -> None:
    """Make torch.compile not trace this package, because it can't trace C functions."""
    if _COMPILES in sys.modules:
        sys.modules[_COMPILES].add("hvdlite")
    else:
        sys.meta_path.insert(0, AfterImport(_COMPILES, _add_rule))


def _add_rule(rules, code) -> None:
    code(rules)
    rules.add("hvdlite")
