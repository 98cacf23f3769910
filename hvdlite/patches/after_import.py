"""Changes modules of others when they are imported, whoever imports them: mpi4py, torch.compile.

MXNet's changes are more, and have a file of their own: ``mxnet_import``.
"""

from __future__ import annotations

import os
import sys

from hvdlite.core import start

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing takes 2 ms
    from collections.abc import Callable
    from typing import Any

# not imported here, because the import takes a second that most scripts can save
_COMPILES = "torch._dynamo.trace_rules"


class AfterImport:
    """A finder: lets the other finders find a module, and has ``execute`` run its code.

    :param execute: is called with the module and the function that runs the module's code.
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
    """Keep the import of mpi4py.MPI from initializing MPI if this process is a rank's child.

    A child has the launcher's variables of its rank, so MPI would wait for a second such rank. A
    script that imports mpi4py.MPI does so again in each worker that spawn or forkserver starts.
    """
    is_told = start.has_launcher_of_mpi(os.environ)
    if not start.is_worker() and (not is_told or start.has_launcher_of_mpi()):
        return
    if sys.modules.get("mpi4py"):
        sys.modules["mpi4py"].rc.initialize = False
    else:
        sys.meta_path.insert(0, AfterImport("mpi4py", _leave_mpi_to_init))


def _leave_mpi_to_init(mpi4py, code) -> None:
    code(mpi4py)
    mpi4py.rc.initialize = False


def keep_from_torch_compile() -> None:
    """Have torch.compile call this package as it is, because it can't trace functions of the C
    library."""
    if _COMPILES in sys.modules:
        sys.modules[_COMPILES].add("hvdlite")
    else:
        sys.meta_path.insert(0, AfterImport(_COMPILES, _add_rule))


def _add_rule(rules, code) -> None:
    code(rules)
    rules.add("hvdlite")
