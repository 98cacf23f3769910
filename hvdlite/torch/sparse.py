"""Sums of sparse COO tensors over ranks: gathers the rows of all ranks and adds them up."""

from typing import List

import torch

from hvdlite.core.arguments import wrong
from hvdlite.core.handles import Handle
from hvdlite.core.names import tensor_name
from hvdlite.core.process_set import ProcessSet, global_process_set
from hvdlite.core.reduce_ops import NAMES, Average, Sum
from hvdlite.torch import exchange


def sparse_allreduce_async(
    tensor, name: str, op: int, process_set: ProcessSet = global_process_set, *, states: int = 0
) -> Handle:
    """Start to reduce a sparse COO tensor over ranks; return a handle; calling the handle waits.

    :param tensor: of the same shape, dtype and number of sparse dimensions on every rank.
    :param name: the same on every rank; no other tensor in progress may have this name.
    :param op: ``hvd.Average`` or ``hvd.Sum``.
    :param states: a digest of the states that the optimizer has just loaded.
    :return: a handle, whose result is a coalesced sparse COO tensor.
    :raises ValueError: ``op`` is something else, or the tensor is dense.
    """
    if type(op) is not int or op not in (Average, Sum):
        raise wrong("op", op, "hvdlite.Average or hvdlite.Sum, as the tensor is sparse")
    if not isinstance(tensor, torch.Tensor) or not tensor.is_sparse:
        raise ValueError(
            f"tensor '{name}': expected a sparse COO tensor; use allreduce() for other tensors"
        )
    tensor = tensor.detach().coalesce()
    names = names_of(name, process_set)
    parts = [tensor.indices().t(), tensor.values()]

    def join(parts):
        (indices, _), (values, _) = parts
        if op == Average:
            values = values / process_set.size()
        return torch.sparse_coo_tensor(
            indices.t(), values, tensor.shape, check_invariants=True
        ).coalesce()

    call = f"sparse {NAMES[op]} of {tuple(tensor.shape)}"
    return exchange.allgather(names, parts, process_set, states, call).then(join)


def names_of(name: str, process_set: ProcessSet) -> List[str]:
    """Return the full names of the parts of a sparse tensor."""
    full = tensor_name("sparse", name, process_set)
    return [f"{full}.indices", f"{full}.values"]


def allreduce_sparse(param, name: str, op: int, process_set: ProcessSet, states: int) -> None:
    """Reduce a parameter's sparse gradient; a missing gradient counts as zero."""
    grad = param.grad
    if grad is None:
        grad = torch.zeros_like(param).to_sparse(1)
    param.grad = sparse_allreduce_async(grad, name, op, process_set, states=states).synchronize()
