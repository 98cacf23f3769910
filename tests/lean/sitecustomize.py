"""Make MXNet, TensorFlow and PyTorch start with less CPU in every process that a test starts.

The import of MXNet then takes 0.5 s instead of 1.6 s, that of TensorFlow 3.4 s instead of 6 s.
Both import other installed libraries that the tests do not need; during these imports the other
libraries seem to be missing. MXNet compiles a Python function for each of its 2,600 operators;
here it compiles a function only when the operator is first called.

PyTorch's first optimizer imports the compiler, which takes 1.5 s, only to exclude functions of the
optimizer from compilation. Here these functions run unchanged until a program imports the compiler.
"""

import functools
import os
import sys
from importlib.machinery import PathFinder

IMPORTERS = ("mxnet", "tensorflow", "keras")
CHANGED = ("mxnet.base", "torch._compile", "torch.optim.optimizer")
LEFT_OUT = ("scipy", "sklearn", "matplotlib", "jax")
if os.environ.get("KERAS_BACKEND", "tensorflow") != "tensorflow":
    LEFT_OUT = ()  # Keras's backend torch looks for these libraries; the backend jax needs jax
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
    """Return MXNet's function ``register``, changed: operators are compiled at their first call."""

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
