"""hvdlite's collectives inside programs that run on a single process, as custom calls of XLA."""

import ctypes
import functools
import os
import shlex
from pathlib import Path
from typing import Any, List, NamedTuple, Sequence, Tuple

import jax
import jaxlib
import numpy as np

from hvdlite._hvdlite_jax import ffi  # type: ignore[import-not-found]
from hvdlite.core.collectives import code_of
from hvdlite.core.module_state import ModuleState
from hvdlite.core.native import lib
from hvdlite.core.process_set import ProcessSet, group_of
from hvdlite.core.reduce_ops import Average, Sum
from hvdlite.jax import numbering
from hvdlite.jax.cliques import TARGET, core_function
from hvdlite.training import compiled


class Collective(NamedTuple):
    """The description of a collective on several arrays, the same on all ranks.

    :param kind: a kind of the core, such as ``lib.HVD_ALLREDUCE``.
    :param name: the tensors are named ``name[0]``, ``name[1]``, ...
    :param root: the root of a broadcast, a rank of the process set.
    """

    kind: int
    name: str
    process_set: ProcessSet
    op: int = Sum
    scales: Tuple[float, float] = (1.0, 1.0)
    root: int = 0

    def elementwise(self) -> bool:
        return self.kind in (lib.HVD_ALLREDUCE, lib.HVD_BROADCAST)

    def shape_of(self, shape: Tuple[int, ...]) -> Tuple[int, ...]:
        """Return the shape of the result for an array of this shape.

        :raises ValueError: the rows do not divide evenly among the ranks.
        """
        if self.elementwise():
            return shape
        rows, size = (shape or (1,))[0], self.process_set.size()
        if self.kind == lib.HVD_ALLGATHER:
            return (rows * size, *shape[1:])
        if rows % size:
            raise ValueError(
                f"tensor '{self.name}' has {rows} rows: inside jit, expected a multiple of {size}, "
                "the number of ranks"
            )
        return (rows // size, *shape[1:]) if self.kind == lib.HVD_REDUCESCATTER else shape


def carried(dtype: Any, collective: Collective) -> np.dtype:
    """Return the dtype that the core moves: a complex number is two floats.

    :raises ValueError: the op is not defined for complex numbers.
    """
    dtype = np.dtype(dtype)
    if dtype.kind != "c":
        return dtype
    reduces = collective.kind in (lib.HVD_ALLREDUCE, lib.HVD_REDUCESCATTER)
    if reduces and collective.op not in (Sum, Average):
        raise ValueError(f"tensor '{collective.name}': for {dtype} expected op Sum or Average")
    return np.dtype(f"f{dtype.itemsize // 2}")


def build() -> Path:
    """Return the path of the C part; compile it for the installed jaxlib if needed.

    :raises RuntimeError: as ``training.compiled.build``.
    """
    source = Path(__file__).with_name("calls.c")
    compiler = [*shlex.split(os.environ.get("CC", "cc")), "-std=c11", *compiled.FLAGS]
    folders = [f"-I{compiled.CSRC}", f"-isystem{jax.ffi.include_dir()}"]
    return compiled.build(
        f"its calls for jaxlib {jaxlib.__version__} (`python -m hvdlite.jax.calls`)",
        f"hvdlite_jax-jaxlib{jaxlib.__version__}", compiler, [source, *compiled.CORE_HEADERS],
        lambda: [*compiler, *folders, str(source)],
    )  # fmt: skip


def _register() -> None:
    """Register the C part with XLA."""
    library = ctypes.CDLL(str(build()))
    library.hvdlite_jax_call_begin(ctypes.c_void_p(int(ffi.cast("uintptr_t", core_function))))
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(library.hvdlite_jax_call), platform="cpu")
    numbering.install()


class _Registered(ModuleState):
    def begin(self) -> None:
        self.once = functools.lru_cache(maxsize=None)(_register)


_registered = _Registered()


def run(c: Collective, *arrays, after: Sequence[Any] = ()) -> List[Any]:
    """Add a collective to a program; return its results, arrays of the same dtypes.

    :param after: arrays that XLA must compute before the collective begins.
    :raises ValueError: the core lacks a dtype, or rows do not divide evenly.
    """
    _registered.once()
    numbers = {
        "group": [group_of(c.process_set)], "kind": [c.kind], "op": [c.op], "root": [c.root],
        "carriers": [code_of(carried(array.dtype, c)) for array in arrays],
    }  # fmt: skip
    attributes = {name: np.array(values, "int32") for name, values in numbers.items()}
    results = [jax.ShapeDtypeStruct(c.shape_of(array.shape), array.dtype) for array in arrays]
    # "broadcast_all" puts the batch in the first dimension, where other collectives have rows.
    batched = "broadcast_all" if c.elementwise() else "sequential"
    call = jax.ffi.ffi_call(TARGET, results, has_side_effect=True, vmap_method=batched)
    name, scales = c.name + numbering.FIRST, np.array(c.scales, "float64")
    return call(*arrays, *after, name=name, scales=scales, **attributes)


if __name__ == "__main__":
    print(build())
