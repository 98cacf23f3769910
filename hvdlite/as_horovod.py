"""Makes ``import horovod.mxnet`` and the like import hvdlite instead of Horovod.

Use one of these three lines; the program needs no other change::

    hvdliterun --as-horovod -n 2 python train.py
    mpirun -n 2 python -m hvdlite.as_horovod train.py     # or: -m module
    import hvdlite.as_horovod                             # before horovod is imported

Then ``horovod`` and its submodules give hvdlite's functions and classes, even if Horovod is
installed (hvdlite/horovod/modules.py lists them). This module sets HVDLITE_HOROVOD_SUMS to 1 unless
the user has set it: ``DistributedTrainer.allreduce_grads()`` then leaves sums, not averages, as
Horovod does on CPUs.
"""

import builtins
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import runpy
import socket
import sys
import types
import zipfile
from typing import List

import hvdlite
from hvdlite.core.launchers import OPEN_MPI, PMI
from hvdlite.horovod.modules import MODULES, VERSION, Names, absence
from hvdlite.launch import environment

# Horovod's variables, and the variables of Open MPI's and MPICH's mpirun that have the same values
_NAMES = ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE")
_OF_MPIRUN = dict(zip(_NAMES, zip(OPEN_MPI.variables, PMI.variables)))
_USAGE = "usage: python -m hvdlite.as_horovod [-m module | script.py] [argument ...]"


class _AsHorovod(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds hvdlite's module when a program first imports a module of Horovod."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname != "horovod" and not fullname.startswith("horovod."):
            return None
        if absence(fullname):
            raise ModuleNotFoundError(absence(fullname), name=fullname)
        exists = fullname in MODULES or _is_module(_same_name(fullname))
        return importlib.util.spec_from_loader(fullname, self) if exists else None

    def exec_module(self, module) -> None:
        name = module.__name__  # sys.modules gets hvdlite's module in place of the empty ``module``
        sys.modules[name] = (
            Names(name, MODULES[name])
            if name in MODULES
            else importlib.import_module(_same_name(name))
        )
        for below in MODULES:  # a submodule is an attribute of its parent module, as in Horovod
            if below.rpartition(".")[0] == name:
                importlib.import_module(below)


def _same_name(name: str) -> str:
    return "hvdlite" + name[len("horovod") :]


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the parent module does not exist
        return False


def take_its_place() -> None:
    """Make ``import horovod`` find hvdlite from now on; a second call does nothing.

    :raises ImportError: the real Horovod has been imported already.
    """
    loaded = sys.modules.get("horovod")
    if loaded is None:
        loaded = sys.modules["horovod"] = Names("horovod", MODULES["horovod"])
        loaded.__version__ = VERSION  # type: ignore[attr-defined]
    if not isinstance(loaded, Names):
        raise ImportError(
            f"horovod is imported already ({loaded.__file__}): import hvdlite.as_horovod first"
        )
    if not any(isinstance(finder, _AsHorovod) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AsHorovod())
    os.environ.setdefault("HVDLITE_HOROVOD_SUMS", "1")
    _set_as_mpirun_says()
    # Makes Python child processes, such as workers of data loaders, import hvdlite as Horovod. Only
    # PYTHONPATH is set, not the variables for MPI, because a child may be a rank of another job.
    os.environ["HVDLITE_AS_HOROVOD"] = "1"
    os.environ["PYTHONPATH"] = environment.with_job_site(os.environ)["PYTHONPATH"]


def _set_as_mpirun_says() -> None:
    """Set the variables of Horovod that mpirun's variables determine; ``init`` sets all others."""
    os.environ["HOROVOD_HOSTNAME"] = socket.gethostname()
    for name, theirs in _OF_MPIRUN.items():
        values = [os.environ[their] for their in theirs if their in os.environ]
        if values:
            os.environ[name] = values[0]


def set_variables() -> None:
    """Set Horovod's variables for the job that begins. An elastic job calls this repeatedly."""
    for what in ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size"):
        os.environ[f"HOROVOD_{what.upper()}"] = str(getattr(hvdlite, what)())


def main(arguments: List[str]) -> None:
    """Run a script or a module in this process, as Python itself does.

    ``__main__`` must be like Python's own until the process ends, because multiprocessing reads the
    script's path or the module's name from ``__main__``, and pickle reads the script's functions.
    """
    if not arguments or arguments == ["-m"]:
        sys.exit(_USAGE)
    if arguments[0] in ("-h", "--help"):
        print(f"{_USAGE}\n\n{sys.modules['hvdlite.as_horovod'].__doc__}", end="")
        return
    module = arguments[0] == "-m"
    sys.argv = arguments[module:]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    if module:
        runpy._run_module_as_main(arguments[1])  # type: ignore[attr-defined]  # as `python -m` does
    elif os.path.isfile(arguments[0]) and not zipfile.is_zipfile(arguments[0]):
        sys.path[0] = os.path.dirname(os.path.realpath(arguments[0]))
        _run_file(arguments[0], main)
    else:  # the argument is a folder or a zip file with a __main__.py
        sys.path[0] = os.path.abspath(arguments[0])
        runpy._run_module_as_main("__main__", False)  # type: ignore[attr-defined]


def _run_file(path: str, main: types.ModuleType) -> None:
    path = os.path.abspath(path)
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    main.__dict__.update(__file__=path, __cached__=None, __spec__=None, __loader__=loader)
    exec(loader.source_to_code(loader.get_data(path), path), main.__dict__)


if __name__ == "__main__":
    # Import this file again: here it is the module `__main__`, but scripts need hvdlite.as_horovod.
    from hvdlite.as_horovod import take_its_place as _take

    _take()
    main(sys.argv[1:])
else:
    take_its_place()
