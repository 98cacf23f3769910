"""Collectives on arrays and pytrees of JAX that only this process has, outside and inside ``jit``.

Outside, hvdlite sends an array's memory without a copy. Inside a program that runs on this process
only, a collective is a custom call of XLA. Programs that run on several processes use JAX's own
collectives, such as ``jax.lax.psum``, which hvdlite runs after ``hvd.init()``.
"""

from typing import Any, List, Optional, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from hvdlite.core import grouped
from hvdlite.core.arguments import op_of, scales_of
from hvdlite.core.collectives import dense
from hvdlite.core.names import group_names, tensor_name
from hvdlite.core.native import lib
from hvdlite.core.process_set import ProcessSet, check_root, global_process_set
from hvdlite.core.reduce_ops import Average, check_linear, scatter_gradient_scale
from hvdlite.jax.calls import Collective, carried, run

_ALIGNED = 64  # bytes; JAX need not copy memory that has this alignment


def allreduce(
    tree: Any, name: Optional[str] = None, average: Optional[bool] = None,
    op: Optional[int] = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:  # fmt: skip
    """Return each array of a pytree reduced over all ranks by ``op``, by default the average.

    All arrays are reduced in one operation. ``grad`` reduces the gradient in the same way.

    :param tree: an array, a number, or a pytree of them; shapes and dtypes are equal on all ranks.
    :param average: True for Average, False for Sum; ``op`` has more choices.
    :param prescale_factor: as for ``hvdlite.numpy.allreduce``, like ``name`` and the errors. A
        failure inside a program raises ``jax.errors.JaxRuntimeError`` or ValueError.
    """
    op, scales = op_of(average, op), scales_of(prescale_factor, postscale_factor)
    name = tensor_name("allreduce", name, process_set)
    return _run_on_leaves(Collective(lib.HVD_ALLREDUCE, name, process_set, op, scales), tree)


def broadcast(
    tree: Any, root_rank: int = 0, name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Any:  # fmt: skip
    """Return rank ``root_rank``'s pytree. Other arguments and errors: see :func:`allreduce`."""
    check_root(root_rank, process_set)
    name, root = tensor_name("broadcast", name, process_set), process_set.number_of(root_rank)
    return _run_on_leaves(Collective(lib.HVD_BROADCAST, name, process_set, root=root), tree)


def broadcast_parameters(params: Any, root_rank: int = 0) -> Any:
    """Return rank ``root_rank``'s pytree of parameters, or of an optimizer's state.

    Arrays of JAX do not change, so use the result: ``params = broadcast_parameters(params)``.
    """
    return broadcast(params, root_rank, "parameters")


def allgather(
    tree: Any, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Return the arrays of all ranks joined along the first dimension.

    Outside ``jit`` the first dimensions may differ by rank; inside ``jit`` they must be equal.
    Arguments and errors: see :func:`allreduce`.
    """
    name = tensor_name("allgather", name, process_set)
    return _run_on_leaves(Collective(lib.HVD_ALLGATHER, name, process_set), tree)


def reducescatter(
    tree: Any, name: Optional[str] = None, op: int = Average, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> Any:  # fmt: skip
    """Return this rank's rows of the result of :func:`allreduce`, which has the same arguments.

    Inside ``jit`` the number of rows must be a multiple of the number of ranks.
    """
    name = tensor_name("reducescatter", name, process_set)
    op, scales = op_of(None, op), scales_of(prescale_factor, postscale_factor)
    return _run_on_leaves(Collective(lib.HVD_REDUCESCATTER, name, process_set, op, scales), tree)


def alltoall(
    tree: Any, splits: Optional[Sequence[int]] = None, name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Any:  # fmt: skip
    """Send rows to each rank; return the rows from all ranks. See also :func:`allreduce`.

    :param splits: how many rows of one array go to each rank (only outside ``jit``). Without
        ``splits`` each rank gets the same number of rows.
    :return: with ``splits`` a pair: the rows, and how many each rank sent.
    """
    name = tensor_name("alltoall", name, process_set)
    collective = Collective(lib.HVD_ALLTOALL, name, process_set)
    if splits is None:
        return _run_on_leaves(collective, tree)
    if isinstance(tree, jax.core.Tracer):
        raise ValueError(f"tensor '{name}': inside jit, alltoall takes no splits")
    array = _local_part(collective, tree)
    handle = grouped.exchange(name, _carrier(collective, array), splits, process_set)
    received, rows_from = handle.synchronize()
    return _restored(received, array), jnp.asarray(rows_from, "int32")


def _run_on_leaves(c: Collective, tree: Any) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    is_inside = any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
    arrays = [jnp.asarray(leaf) if is_inside else _local_part(c, leaf) for leaf in leaves]
    if c.kind == lib.HVD_ALLGATHER:
        arrays = [array if array.ndim else array.reshape(1) for array in arrays]
    return jax.tree.unflatten(structure, (_run_inside if is_inside else _run_outside)(c, *arrays))


# ---- outside ----
def _local_part(collective: Collective, leaf: Any) -> np.ndarray:
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        raise ValueError(
            f"tensor '{collective.name}': the array is sharded over several processes: pass the "
            "part of this process (array.addressable_data(0)), or use jax.lax.psum inside jit"
        )
    is_number = isinstance(leaf, (float, int, complex))
    return np.asarray(jnp.asarray(leaf) if is_number else leaf, order="C")


def _carrier(collective: Collective, array: np.ndarray) -> np.ndarray:
    """Return the array as the core sees it: a complex number is a row of two floats."""
    dtype = carried(array.dtype, collective)
    return dense((array if dtype == array.dtype else array[..., None]).view(dtype))


def _run_outside(c: Collective, *arrays: np.ndarray) -> List[Any]:
    sent = [_carrier(c, array) for array in arrays]
    names, ps, outs = group_names(c.name, sent), c.process_set, list(map(_room_for, sent))
    if c.kind == lib.HVD_ALLGATHER:
        handle = grouped.gather(names, sent, ps, [None] * len(sent))
        results = [gathered for gathered, _rows in handle.synchronize()]
    elif c.kind == lib.HVD_ALLTOALL:
        begun = [grouped.exchange(str(n), a, None, ps, o) for n, a, o in zip(names, sent, outs)]
        results = [handle.synchronize()[0] for handle in begun]
    elif c.kind == lib.HVD_BROADCAST:
        results = grouped.broadcasts(names, sent, ps.ranks[c.root], ps, outs).synchronize()
    else:
        into = outs if c.kind == lib.HVD_ALLREDUCE else None
        results = grouped.reductions(c.kind, names, sent, c.op, c.scales, ps, into).synchronize()
    return list(map(_restored, results, arrays))


def _room_for(array: np.ndarray) -> np.ndarray:
    """Return a new array of the same shape and dtype, aligned so that JAX need not copy it."""
    room = np.empty(array.nbytes + _ALIGNED, np.uint8)
    begin = -room.ctypes.data % _ALIGNED
    return room[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)


def _restored(result: np.ndarray, array: np.ndarray) -> Any:
    result = result.view(array.dtype)  # hvdlite made it, so JAX may keep its memory
    return jax.device_put(result[..., 0] if array.dtype.kind == "c" else result, may_alias=True)


# ---- inside ----
_run_inside = jax.custom_vjp(run, nondiff_argnums=(0,))


def _backward(c: Collective, _, grads):
    """Return the gradients; None for an array of integers or bools, which has no gradient."""
    has_gradient = [grad.dtype != jax.dtypes.float0 for grad in grads]
    sent = [grad for grad, has in zip(grads, has_gradient) if has]
    found = iter(_gradients(c, sent) if sent else ())
    return tuple(next(found) if has else None for has in has_gradient)


def _gradients(c: Collective, grads: Sequence[Any]) -> Sequence[Any]:
    """Return the gradients, scaled as in Horovod.

    docs/training.md has the scales under "Gradients through collectives".
    """
    ps, own = c.process_set, c._replace(name=f"{c.name}.grad")
    average = Collective(lib.HVD_ALLREDUCE, own.name, ps, Average)
    if c.kind in (lib.HVD_ALLREDUCE, lib.HVD_REDUCESCATTER):
        check_linear(c.name, c.op)
    if c.kind in (lib.HVD_ALLREDUCE, lib.HVD_ALLTOALL):
        return _run_inside(own, *grads)
    if c.kind == lib.HVD_REDUCESCATTER:
        scale = scatter_gradient_scale(c.op, c.scales, ps.size())
        gathered = _run_inside(Collective(lib.HVD_ALLGATHER, own.name, ps), *grads)
        return [grad * scale for grad in gathered]
    if c.kind == lib.HVD_ALLGATHER:
        return _run_inside(average._replace(kind=lib.HVD_REDUCESCATTER), *grads)
    mine = ps.rank() == c.root
    return [grad if mine else jnp.zeros_like(grad) for grad in _run_inside(average, *grads)]


_run_inside.defvjp(lambda c, *arrays: (_run_inside(c, *arrays), None), _backward)
