"""In the path of every process that a test starts: imports of MXNet and TensorFlow take less CPU.

MXNet's takes 0.5 s instead of 1.6, TensorFlow's 3.4 instead of 6. They import other libraries that
happen to be installed, which nothing here needs: these seem to be missing meanwhile. And MXNet
writes and compiles a function for each of its 2,600 operators: here at the operator's first call.
"""

import functools
import os
import sys
from importlib.machinery import PathFinder

IMPORTERS = ("mxnet", "tensorflow", "keras")
LEFT_OUT = ("scipy", "sklearn", "matplotlib", "jax")
if os.environ.get("KERAS_BACKEND", "tensorflow") != "tensorflow":
    LEFT_OUT = ()  # PyTorch asks where they are, JAX is one of them
if os.environ.get("HVDLITE_TEST_WITHOUT_MPI"):
    sys.modules["mpi4py"] = None  # seems not to be installed


def made_late(make):
    def maker(*names):
        function = functools.lru_cache(None)(lambda: make(*names))

        def operator(*arrays, **options):
            return function()(*arrays, **options)

        operator.__name__, operator.__doc__ = names[-1], ""
        return operator

    return maker


def registering_late(register):
    """MXNet gives what makes a function as the last argument, or by its name."""

    def registered(*names, make_op_func=None, **more):
        *names, make = [*names, make_op_func] if make_op_func else names
        register(*names, make_op_func=made_late(make), **more)

    return registered


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in LEFT_OUT:
            specs = (getattr(sys.modules.get(each), "__spec__", None) for each in IMPORTERS)
            if any(getattr(spec, "_initializing", False) for spec in specs):
                raise ModuleNotFoundError(f"{name} is left out here", name=name)
        spec = PathFinder.find_spec(name, path) if name == "mxnet.base" else None
        if spec:
            execute = spec.loader.exec_module

            def exec_module(base):
                execute(base)
                for register in ("_init_op_module", "_init_np_op_module"):
                    setattr(base, register, registering_late(getattr(base, register)))

            spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Finder)
