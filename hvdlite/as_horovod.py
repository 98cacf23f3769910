"""Puts hvdlite in the place of Horovod, for programs that import ``horovod.mxnet``.

Each of these three lines is enough; the program stays as it is::

    hvdliterun --as-horovod -n 2 python train.py
    mpirun -n 2 python -m hvdlite.as_horovod train.py     # or: -m module
    import hvdlite.as_horovod                             # before horovod is imported

``horovod`` and each module below it are then the hvdlite module of that name, even if Horovod is
installed. ``DistributedTrainer.allreduce_grads()`` leaves sums, as Horovod's does on CPUs, because
this module sets HVDLITE_HOROVOD_SUMS to 1 unless the user has set it.
"""

import importlib
import importlib.abc
import importlib.util
import os
import runpy
import sys
from typing import List

import hvdlite

_USAGE = "usage: python -m hvdlite.as_horovod [-m module | script.py] [argument ...]"


class _AsHorovod(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports ``hvdlite.NAME`` when ``horovod.NAME`` is first imported."""

    def find_spec(self, fullname, path=None, target=None):
        if not fullname.startswith("horovod.") or not importlib.util.find_spec(_ours(fullname)):
            return None
        return importlib.util.spec_from_loader(fullname, self)

    def exec_module(self, module) -> None:
        name = module.__name__
        sys.modules[name] = importlib.import_module(_ours(name))  # in place of the empty one


# Where Horovod has what hvdlite has elsewhere.
_ELSEWHERE = {
    "horovod.common": "hvdlite.elastic",
    "horovod.common.elastic": "hvdlite.elastic.loop",
    "horovod.common.exceptions": "hvdlite.elastic.exceptions",
}


def _ours(name: str) -> str:
    return _ELSEWHERE.get(name, "hvdlite" + name[len("horovod") :])


def take_its_place() -> None:
    """Let ``import horovod`` find hvdlite from now on; a second call does nothing.

    :raises ImportError: the real Horovod has been imported already.
    """
    there = sys.modules.setdefault("horovod", hvdlite)
    if there is not hvdlite:
        raise ImportError(
            f"horovod is imported already ({there.__file__}): import hvdlite.as_horovod before it"
        )
    if not any(isinstance(finder, _AsHorovod) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AsHorovod())
    os.environ.setdefault("HVDLITE_HOROVOD_SUMS", "1")


def main(arguments: List[str]) -> None:
    """Run a script, or a module, as Python itself does, in this process."""
    if not arguments or arguments == ["-m"]:
        sys.exit(_USAGE)
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    from hvdlite.as_horovod import take_its_place as _take  # the module itself, not this copy

    _take()
    main(sys.argv[1:])
else:
    take_its_place()
