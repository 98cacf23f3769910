"""Collectives on arrays and pytrees of JAX that are this process's own, outside and inside ``jit``.

Outside, an array's memory is sent as it is. Inside a program that runs on this process alone, a
collective is a custom call of XLA. Programs that run on several processes use JAX's own, such as
``jax.lax.psum``, which go through hvdlite after ``hvd.init()``.
"""

from typing import Any, List, Optional, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from hvdlite.core import grouped, rows
from hvdlite.core.arguments import op_of
from hvdlite.core.collectives import dense
from hvdlite.core.names import group_names, tensor_name
from hvdlite.core.native import lib
from hvdlite.core.process_set import ProcessSet, check_root, global_process_set
from hvdlite.core.reduce_ops import Average, check_linear, scatter_gradient_scale
from hvdlite.jax.calls import Collective, carried, run

_ALIGNED = 64  # bytes; JAX takes over memory that is aligned so


def allreduce(
    tree: Any, name: Optional[str] = None, average: Optional[bool] = None,
    op: Optional[int] = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:  # fmt: skip
    """Return ``op`` over all ranks of each array of a pytree, by default the average.

    All arrays are reduced in one operation. Under ``grad`` the gradient is reduced likewise.

    :param tree: an array, a number, or a pytree of them; of equal shapes and dtypes on all ranks.
    :param name: pairs the call with those of the other ranks; by default the line of the script.
    :param average: True for Average, False for Sum; ``op`` says more.
    :param prescale_factor: and ``postscale_factor``: what to multiply by before and after it.
    :raises ValueError: an argument is wrong; nothing has been sent.
    :raises hvdlite.HvdliteError: the ranks disagree, one has left, or the transport failed. Inside
        a program it is a ``jax.errors.JaxRuntimeError``, or a ValueError, with the same text.
    """
    name = tensor_name("allreduce", name, process_set)
    scales = float(prescale_factor), float(postscale_factor)
    return _mapped(
        Collective(lib.HVD_ALLREDUCE, name, process_set, op_of(average, op), scales), tree
    )


def broadcast(
    tree: Any, root_rank: int = 0, name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Any:  # fmt: skip
    """Return rank ``root_rank``'s pytree.

    :param tree: and ``name``, ``process_set`` and errors: as for :func:`allreduce`.
    """
    check_root(root_rank, process_set)
    name, root = tensor_name("broadcast", name, process_set), process_set.number_of(root_rank)
    return _mapped(Collective(lib.HVD_BROADCAST, name, process_set, root=root), tree)


def broadcast_parameters(params: Any, root_rank: int = 0) -> Any:
    """Return rank ``root_rank``'s pytree of parameters, or of an optimizer's state.

    Arrays of JAX do not change, so use what is returned: ``params = broadcast_parameters(params)``.
    """
    return broadcast(params, root_rank, "parameters")


def allgather(
    tree: Any, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Return the arrays of all ranks joined along the first dimension.

    :param tree: and all others: as for :func:`allreduce`. Outside programs the first dimensions may
        differ by rank; inside they are equal.
    """
    name = tensor_name("allgather", name, process_set)
    return _mapped(Collective(lib.HVD_ALLGATHER, name, process_set), tree)


def reducescatter(
    tree: Any, name: Optional[str] = None, op: int = Average, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> Any:  # fmt: skip
    """Return this rank's rows of what :func:`allreduce` would return.

    :param tree: and all others: as there. Inside programs the rows divide evenly.
    """
    name = tensor_name("reducescatter", name, process_set)
    scales = float(prescale_factor), float(postscale_factor)
    return _mapped(Collective(lib.HVD_REDUCESCATTER, name, process_set, op, scales), tree)


def alltoall(
    tree: Any, splits: Optional[Sequence[int]] = None, name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Any:  # fmt: skip
    """Send rows to each rank; return the rows from all ranks, in their order.

    :param tree: and all others: as for :func:`allreduce`.
    :param splits: how many rows of one array go to each rank, outside of programs; by default the
        rows divide evenly.
    :return: with ``splits`` a pair: the rows, and how many each rank sent.
    """
    name = tensor_name("alltoall", name, process_set)
    collective = Collective(lib.HVD_ALLTOALL, name, process_set)
    if splits is None:
        return _mapped(collective, tree)
    if isinstance(tree, jax.core.Tracer):
        raise ValueError(f"tensor '{name}': inside a program alltoall takes no splits")
    array = _own(collective, tree)
    (sent,) = _carriers(collective, [array])
    got, came = rows.exchange(name, sent, splits, process_set).synchronize()
    return _restored(got, array), jnp.asarray(came, "int32")


def _mapped(collective: Collective, tree: Any) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        leaves = [jnp.asarray(leaf) for leaf in leaves]
        results = _inside(collective, *_with_rows(collective, leaves))
    else:
        results = _outside(collective, [_own(collective, leaf) for leaf in leaves])
    return jax.tree.unflatten(structure, results)


def _own(collective: Collective, leaf: Any) -> np.ndarray:
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        raise ValueError(
            f"tensor '{collective.name}': the array lies on several processes: give the part of "
            "this process (array.addressable_data(0)), or use jax.lax.psum inside jit"
        )
    if isinstance(leaf, (float, int, complex)):
        leaf = jnp.asarray(leaf)
    return np.asarray(leaf, order="C")


def _with_rows(collective: Collective, arrays: Sequence[Any]) -> Sequence[Any]:
    if collective.elementwise():
        return arrays
    return [array.reshape(1) if array.ndim == 0 else array for array in arrays]


# ---- outside ----
def _carriers(collective: Collective, arrays: Sequence[np.ndarray]) -> List[np.ndarray]:
    """Return the arrays as the core sees them: a complex number is a row of two."""
    made = []
    for array in _with_rows(collective, arrays):
        dtype, parts = carried(array.dtype, collective)
        made.append((array[..., None] if parts > 1 else array).view(dtype))
    return made


def _outside(c: Collective, arrays: List[np.ndarray]) -> List[Any]:
    sent = [dense(array) for array in _carriers(c, arrays)]
    names, ps = group_names(c.name, sent), c.process_set
    if c.kind in (lib.HVD_ALLGATHER, lib.HVD_ALLTOALL):
        if c.kind == lib.HVD_ALLGATHER:
            pairs = rows.gather(names, sent, ps, [None] * len(sent)).synchronize()
        else:
            begun = [rows.exchange(str(n), a, None, ps, _room_for(a)) for n, a in zip(names, sent)]
            pairs = [handle.synchronize() for handle in begun]
        out = [got for got, _came in pairs]
    elif c.kind == lib.HVD_BROADCAST:
        rooms = list(map(_room_for, sent))
        out = grouped.broadcasts(names, sent, ps.ranks[c.root], ps, rooms).synchronize()
    else:
        outs = list(map(_room_for, sent)) if c.kind == lib.HVD_ALLREDUCE else None
        out = grouped.reductions(c.kind, names, sent, c.op, c.scales, ps, outs).synchronize()
    return list(map(_restored, out, arrays))


def _room_for(array: np.ndarray) -> np.ndarray:
    """Return an array like it, at an address at which JAX can take the memory over."""
    room = np.empty(array.nbytes + _ALIGNED, np.uint8)
    begin = -room.ctypes.data % _ALIGNED
    return room[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)


def _restored(got: np.ndarray, array: np.ndarray) -> Any:
    got = got.view(array.dtype)  # `got` owns its memory, so it may be changed
    return jax.device_put(got[..., 0] if array.dtype.kind == "c" else got, may_alias=True)


# ---- inside ----
_inside = jax.custom_vjp(run, nondiff_argnums=(0,))


def _forward(collective: Collective, *arrays):
    return _inside(collective, *arrays), None


def _backward(collective: Collective, _, grads):
    """Horovod's gradients, scale included, as in docs/training.md."""
    c = collective
    name, ps = f"{c.name}.grad", c.process_set
    if c.kind in (lib.HVD_ALLREDUCE, lib.HVD_REDUCESCATTER):
        check_linear(c.name, c.op)
    if c.kind in (lib.HVD_ALLREDUCE, lib.HVD_ALLTOALL):
        return tuple(_inside(c._replace(name=name), *grads))
    if c.kind == lib.HVD_REDUCESCATTER:
        scale = scatter_gradient_scale(c.op, c.scales, ps.size())
        gathered = _inside(Collective(lib.HVD_ALLGATHER, name, ps), *grads)
        return tuple(grad * scale for grad in gathered)
    average = Collective(lib.HVD_ALLREDUCE, name, ps, Average)
    if c.kind == lib.HVD_BROADCAST:
        mine = ps.rank() == c.root
        return tuple(grad if mine else jnp.zeros_like(grad) for grad in _inside(average, *grads))
    rows = Collective(lib.HVD_REDUCESCATTER, name, ps, Average)
    return tuple(_inside(rows, *grads))


_inside.defvjp(_forward, _backward)
