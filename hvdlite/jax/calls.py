"""hvdlite's collectives inside programs that run on one process alone: custom calls of XLA."""

import ctypes
import functools
import os
import shlex
from pathlib import Path
from typing import Any, List, NamedTuple, Sequence, Tuple

import jax
import jaxlib
import numpy as np

from hvdlite.core.collectives import dense, memory_of
from hvdlite.core.native import lib
from hvdlite.core.process_set import ProcessSet, group_of
from hvdlite.core.reduce_ops import Average, Sum
from hvdlite.jax.cliques import TARGET
from hvdlite.jax.library import core_function
from hvdlite.training import compiled

_FLAGS = ("-std=c11", "-O2", "-fvisibility=hidden", "-shared", "-fPIC", "-pthread")


class Collective(NamedTuple):
    """What a call does; equal on all ranks.

    :param kind: of the core; ``name``: of the tensors, which get ``[0]``, ... after it.
    :param root: a rank of the process set.
    """

    kind: int
    name: str
    process_set: ProcessSet
    op: int = Sum
    scales: Tuple[float, float] = (1.0, 1.0)
    root: int = 0

    def elementwise(self) -> bool:
        return self.kind in (lib.HVD_ALLREDUCE, lib.HVD_BROADCAST)

    def rows_of(self, rows: int) -> int:
        """Return how many rows a result has, for an operand of so many."""
        size = self.process_set.size()
        if self.kind == lib.HVD_ALLGATHER:
            return rows * size
        if self.kind in (lib.HVD_REDUCESCATTER, lib.HVD_ALLTOALL) and rows % size:
            raise ValueError(
                f"tensor '{self.name}' has {rows} rows: inside a program they must divide evenly "
                f"among {size} ranks"
            )
        return rows // size if self.kind == lib.HVD_REDUCESCATTER else rows


def carried(dtype: Any, collective: Collective) -> Tuple[np.dtype, int]:
    """Return the core's dtype for elements of a dtype, and how many of them one element is.

    Complex numbers are pairs. Unsigned numbers are signed ones, whose sums have the same bits.

    :raises ValueError: the op is not defined on the dtype, or the core does not have it.
    """
    dtype = np.dtype(dtype)
    reduces = collective.kind in (lib.HVD_ALLREDUCE, lib.HVD_REDUCESCATTER)
    if dtype.kind == "c" and (not reduces or collective.op in (Sum, Average)):
        return np.dtype(f"f{dtype.itemsize // 2}"), 2
    if dtype.kind == "u" and dtype.itemsize > 1 and (not reduces or collective.op == Sum):
        return np.dtype(f"i{dtype.itemsize}"), 1
    if dtype.kind in "cu" and dtype.itemsize > 1:
        raise ValueError(f"tensor '{collective.name}': {dtype} can be summed only; got another op")
    return dtype, 1


def build() -> Path:
    """Return the C part, compiled for the installed jaxlib, once.

    :raises RuntimeError: as ``training.compiled.build``.
    """
    here, compiler = Path(__file__).parent, [*shlex.split(os.environ.get("CC", "cc")), *_FLAGS]
    csrc = here.parent / "csrc"
    headers = [csrc / name for name in ("functions.h", "hvd.h", "base/error.h", "base/types.h")]
    folders = [f"-I{csrc}", f"-I{here}", f"-isystem{jax.ffi.include_dir()}"]
    what = f"its calls for jaxlib {jaxlib.__version__} (`python -m hvdlite.jax.calls`)"
    return compiled.build(
        what, f"hvdlite_jax-jaxlib{jaxlib.__version__}", compiler,
        [here / "calls.c", here / "core.h", *headers],
        lambda: [*compiler, *folders, str(here / "calls.c")],
    )  # fmt: skip


@functools.lru_cache(maxsize=None)
def _register() -> None:
    library = ctypes.CDLL(str(build()))
    failed = library.hvdlite_jax_call_begin(core_function)
    if failed:
        raise OSError(failed, f"hvdlite.jax can't start its thread: {os.strerror(failed)}")
    handler = jax.ffi.pycapsule(library.hvdlite_jax_call)
    jax.ffi.register_ffi_target(TARGET, handler, platform="cpu")


def run(collective: Collective, *arrays, after: Sequence[Any] = ()) -> List[Any]:
    """Return the results of a collective on arrays in a program, as arrays of the same dtypes.

    :param after: arrays that are computed before the collective begins.
    :raises ValueError: the core lacks a dtype, or rows do not divide evenly.
    """
    _register()
    carriers = [carried(array.dtype, collective) for array in arrays]
    shapes = [
        jax.ShapeDtypeStruct(
            array.shape
            if collective.elementwise()
            else (collective.rows_of(array.shape[0]), *array.shape[1:]),
            array.dtype,
        )
        for array in arrays
    ]
    # Other collectives work on rows, before which vmap would put the batch's dimension.
    batched = "broadcast_all" if collective.elementwise() else "sequential"
    call = jax.ffi.ffi_call(TARGET, shapes, has_side_effect=True, vmap_method=batched)
    how = [collective.kind, collective.op, collective.root, group_of(collective.process_set)]
    for dtype, parts in carriers:
        how += [memory_of(dense(np.empty(0, dtype))).dtype, parts]
    return call(
        *arrays, *after, name=collective.name, how=np.array(how, np.int64),
        scales=np.array(collective.scales, np.float64),
    )  # fmt: skip


if __name__ == "__main__":
    print(build())
