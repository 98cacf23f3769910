"""Converts collectives of float16 and smaller floats, which XLA can't pass to MPI.

Gathers move integers with the same bits. Reductions reduce float32 values and round once.
"""

from functools import partial
from typing import Any, Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.interpreters.mlir import _lowerings
from jax._src.lax import parallel
from jax.interpreters import mlir

_GATHERS = "all_gather", "all_gather_invariant", "all_gather_reduced"
_REDUCTIONS = (
    "psum", "psum_invariant", "unreduced_psum", "pmax", "pmin", "reduce_scatter",
    "unreduced_reduce_scatter",
)  # fmt: skip


def translate() -> None:
    """Make JAX convert its collectives of small floats, but not those of XLA's partitioner."""
    for name in _GATHERS + _REDUCTIONS:
        primitive = getattr(parallel, f"{name}_p", None)
        if primitive:  # JAX 0.7.2 lacks some of these primitives
            rule = partial(_lower, _lowerings[primitive].rule, name in _GATHERS)
            mlir.register_lowering(primitive, rule, platform="cpu")


def _lower(rule: Callable[..., Any], gathers: bool, context: Any, x: Any, **options: Any) -> Any:
    (small,), (small_result,) = context.avals_in, context.avals_out
    dtype = small.dtype
    if not jnp.issubdtype(dtype, np.floating) or dtype == jnp.bfloat16 or dtype.itemsize > 2:
        return rule(context, x, **options)
    as_bits = gathers and jnp.finfo(dtype).bits >= 8
    carrier = jnp.dtype(f"uint{8 * dtype.itemsize}" if as_bits else "float32")
    large, large_result = small.update(dtype=carrier), small_result.update(dtype=carrier)
    convert = jax.lax.bitcast_convert_type if as_bits else jax.lax.convert_element_type

    def converted(value: Any, before: Any, after: Any) -> Sequence[Any]:
        lower = mlir.lower_fun(partial(convert, new_dtype=after.dtype), multiple_results=False)
        return lower(context.replace(primitive=None, avals_in=[before], avals_out=[after]), value)

    moved = context.replace(avals_in=[large], avals_out=[large_result])
    (result,) = rule(moved, converted(x, small, large)[0], **options)
    return converted(result, large_result, small_result)
