"""A table of Horovod 0.28.1's modules, and of the hvdlite modules that provide their names."""

import importlib
import types
from typing import Any, Sequence

VERSION = "0.28.1"  # the value of horovod.__version__

_UTIL = "hvdlite.horovod.util"
_COMMON = (_UTIL, "hvdlite.core.build_queries")
_CALLBACKS = ("hvdlite.keras.callbacks",)
_ELASTIC = ("hvdlite.keras.elastic",)
_TORCH, _TENSORFLOW = "hvdlite.torch", "hvdlite.tensorflow"

# If a module is not in this table, hvdlite's module of the same name is used: hvdlite.torch for
# horovod.torch.
MODULES = {
    "horovod": ("hvdlite",),
    "horovod.common": (),
    "horovod.common.basics": (_UTIL, "hvdlite"),
    "horovod.common.elastic": ("hvdlite.elastic", "hvdlite.elastic.loop"),
    "horovod.common.exceptions": ("hvdlite.elastic", _UTIL),
    "horovod.common.process_sets": ("hvdlite.core.process_set", "hvdlite.core.registry"),
    "horovod.common.util": _COMMON,
    "horovod.data": ("hvdlite.horovod.data",),
    "horovod.data.data_loader_base": ("hvdlite.horovod.data",),
    "horovod.mxnet.functions": ("hvdlite.mxnet",),
    "horovod.mxnet.mpi_ops": ("hvdlite.mxnet",),
    "horovod.run": ("hvdlite.launch.api", _UTIL),
    "horovod.runner": ("hvdlite.launch.api", _UTIL),
    "horovod.runner.launch": (_UTIL,),
    "horovod.torch.elastic": ("hvdlite.torch.elastic", "hvdlite.elastic.loop"),
    "horovod.torch.elastic.sampler": ("hvdlite.elastic.sampler",),
    "horovod.torch.elastic.state": ("hvdlite.torch.elastic",),
    "horovod.torch.functions": (_TORCH,),
    "horovod.torch.mpi_ops": (_TORCH, *_COMMON),
    "horovod.tensorflow.compression": (_TENSORFLOW,),
    "horovod.tensorflow.functions": (_TENSORFLOW,),
    "horovod.tensorflow.mpi_ops": (_TENSORFLOW, *_COMMON),
    "horovod.tensorflow.util": (_UTIL,),
    "horovod.tensorflow.keras": ("hvdlite.tensorflow.keras",),
    "horovod.tensorflow.keras.callbacks": _CALLBACKS,
    "horovod.tensorflow.keras.elastic": _ELASTIC,
    "horovod.keras.callbacks": _CALLBACKS,
    "horovod.keras.elastic": _ELASTIC,
}

# Modules of Horovod that hvdlite does not have, and the reason.
ABSENT = {
    "horovod.spark": "hvdlite does not start jobs inside Spark",
    "horovod.ray": "hvdlite does not start jobs inside Ray",
    "horovod.tensorflow.data": "hvdlite has no service for tf.data",
    "horovod.tensorflow.gradient_aggregation": "backward_passes_per_step is inside the optimizers",
}
_WAY_OUT = "start the ranks by hvdliterun, mpirun or hvdlite.run; docs/horovod.md lists the names"


def absence(name: str) -> str:
    """Return an error text if a module, or its parent, is in ABSENT; otherwise ""."""
    above = [name[:end] for end, c in enumerate(f"{name}.") if c == "."]
    return next((f"no {name}: {ABSENT[a]}; {_WAY_OUT}" for a in above if a in ABSENT), "")


class Names(types.ModuleType):
    """A Horovod module. It takes each name from the first hvdlite module that has the name."""

    def __init__(self, name: str, homes: Sequence[str]) -> None:
        super().__init__(name, f"Horovod's {name}, by hvdlite.")
        self.__path__: list = []  # makes this module a package, so that it can have submodules
        self._homes = tuple(homes)

    def __getattr__(self, name: str) -> Any:
        for home in self._homes:
            try:
                return getattr(importlib.import_module(home), name)
            except AttributeError:
                continue
        raise AttributeError(f"module '{self.__name__}' has no attribute '{name}'")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call ``run``: newer programs call horovod.run, older programs import it as a module."""
        return self.run(*args, **kwargs)

    def __dir__(self):
        homes = map(importlib.import_module, self._homes)
        return sorted({*super().__dir__(), *(name for home in homes for name in dir(home))})
