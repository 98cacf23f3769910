"""In the path of every process that a test starts: MXNet, TensorFlow and PyTorch take less CPU.

MXNet's import takes 0.5 s instead of 1.6, TensorFlow's 3.4 instead of 6. They import other
libraries that happen to be installed, which nothing here needs: these seem to be missing meanwhile.
And MXNet writes and compiles a function for each of its 2,600 operators: here at the operator's
first call.

PyTorch's first optimizer imports its compiler, in 1.5 s, to keep the compiler out of functions of
the optimizer. Here these functions run as they are until the program imports the compiler.
"""

import functools
import os
import sys
from importlib.machinery import PathFinder

IMPORTERS = ("mxnet", "tensorflow", "keras")
CHANGED = ("mxnet.base", "torch._compile", "torch.optim.optimizer")
LEFT_OUT = ("scipy", "sklearn", "matplotlib", "jax")
if os.environ.get("KERAS_BACKEND", "tensorflow") != "tensorflow":
    LEFT_OUT = ()  # nothing is left out: PyTorch searches for these, and JAX is one of them
if os.environ.get("HVDLITE_TEST_WITHOUT_MPI"):
    sys.modules["mpi4py"] = None  # makes mpi4py seem not installed


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


def outside_of_compiler(disable):
    def disabled(function=None, recursive=True):
        if function is None:
            return functools.partial(disabled, recursive=recursive)
        never_compiled = disable(function, recursive)

        @functools.wraps(function)
        def call(*arguments, **options):
            compiles = "torch._dynamo" in sys.modules
            return (never_compiled if compiles else function)(*arguments, **options)

        return call

    return disabled


def with_gradients_off(decorator):
    def decorated(step):
        with_compiler = decorator(step)

        @functools.wraps(step)
        def call(optimizer, *arguments, **options):
            if "torch._dynamo" in sys.modules:
                return with_compiler(optimizer, *arguments, **options)
            with sys.modules["torch"].set_grad_enabled(optimizer.defaults["differentiable"]):
                return step(optimizer, *arguments, **options)

        return call

    return decorated


def change(module) -> None:
    if module.__name__ == "torch._compile":
        module._disable_dynamo = outside_of_compiler(module._disable_dynamo)
        return
    if module.__name__ == "torch.optim.optimizer":
        decorator = module._use_grad_for_differentiable
        module._use_grad_for_differentiable = with_gradients_off(decorator)
        return
    for register in ("_init_op_module", "_init_np_op_module"):
        setattr(module, register, registering_late(getattr(module, register)))


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in LEFT_OUT:
            specs = (getattr(sys.modules.get(each), "__spec__", None) for each in IMPORTERS)
            if any(getattr(spec, "_initializing", False) for spec in specs):
                raise ModuleNotFoundError(f"{name} is left out here", name=name)
        if name not in CHANGED:
            return None
        spec = PathFinder.find_spec(name, path)
        if spec:
            execute = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (execute(module), change(module))
        return spec


sys.meta_path.insert(0, Finder)
