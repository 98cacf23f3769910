"""Decides for all ranks which gradients of an optimizer are sent together, and in which order."""

from collections import defaultdict
from operator import attrgetter
from typing import Dict, Iterable, List, NamedTuple, Sequence

import torch

from hvdlite.core.agreement import agree
from hvdlite.core.objects import allgather_object
from hvdlite.torch.buckets import is_elementwise
from hvdlite.torch.changes import SAME
from hvdlite.training.plan import Reduction


class Layout(NamedTuple):
    """The parameters of an optimizer, by how their gradients are sent."""

    dense: List[torch.Tensor]  # in the reverse of the order in which rank 0's backward wrote them
    sparse: List[torch.Tensor]
    unreached: List[torch.Tensor]  # parameters without a gradient on all ranks so far


def agreed(
    owner: str, named: Dict[torch.Tensor, str], facts: List[str],
    written: Iterable[torch.Tensor], kinds: Dict[str, bool], reduction: Reduction,
) -> Layout:  # fmt: skip
    """Return the layout on which all ranks agree. Collective.

    :param facts: texts that must be equal on all ranks: first those about ``named``, in order.
    :param written: the parameters in the order in which backward has written their gradients.
    :param kinds: for each parameter with a gradient, by name: True if the gradient is sparse.
        This function adds the other ranks' entries.
    :raises hvdlite.HvdliteError: the ranks have different parameters.
    """
    names = {name: param for param, name in named.items()}
    process_set = reduction.process_set
    of_named = [f"{f} ({p.dtype}, {tuple(p.shape)}, {p.stride()})" for f, p in zip(facts, named)]
    agree(owner, [*of_named, *facts[len(named) :]], None, process_set, SAME)
    seen = [named[param] for param in reversed(list(written))]
    for name, param in names.items():
        if param.grad is not None:
            kinds[name] = kinds.get(name, False) or param.grad.is_sparse
    everyone = allgather_object((seen, kinds), f"order.{owner}", process_set)
    for name, sparse in (item for _, theirs in everyone for item in theirs.items()):
        kinds[name] = kinds.get(name, False) or sparse
    order, _ = everyone[0]
    order = [*(name for name in names if name not in order), *order]
    rows = {name for name, is_sparse in kinds.items() if is_sparse}
    rows = set() if reduction.sparse_as_dense else rows
    return Layout(
        [names[name] for name in order if name in kinds and name not in rows],
        [param for name, param in names.items() if name in rows],
        [param for name, param in names.items() if name not in kinds],
    )


def split(
    params: Sequence[torch.Tensor], chosen: Sequence[Sequence[torch.Tensor]], reduction: Reduction
) -> List[Sequence]:
    """Return groups of the parameters, each of one dtype and device, the first layers first.

    :param chosen: the user's groups, which are not split further.
    """
    if not is_elementwise(reduction):
        return [[param] for param in params]
    present = set(params)  # `chosen` may also have frozen, unreached and sparse parameters
    groups = [[param for param in group if param in present] for group in chosen]
    grouped = {param for group in groups for param in group}
    groups.append([param for param in params if param not in grouped])
    runs: List[Sequence] = []
    for group in groups:
        alike = defaultdict(list)
        for param in group:
            alike[param.dtype, param.device].append(param)
        for each in alike.values():
            last = group is groups[-1]
            runs.extend(reduction.groups(each, attrgetter("nbytes")) if last else [each])
    return runs
