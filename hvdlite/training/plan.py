"""Reduces the gradients of a trainer or optimizer, for every framework.

The adapter of a framework decides when gradients are submitted and who waits for the results.
"""

import math
from typing import Any, Callable, Collection, Dict, List, NamedTuple, Optional, Sequence

import numpy as np

from hvdlite.core.agreement import agree
from hvdlite.core.arguments import factor as number
from hvdlite.core.arguments import op_of, whole, wrong
from hvdlite.core.collectives import Repeated, dense, memory_of, reduction
from hvdlite.core.handles import Handle
from hvdlite.core.names import shape_of_name
from hvdlite.core.native import lib
from hvdlite.core.process_set import ProcessSet, check_process_set, global_process_set, group_of
from hvdlite.core.reduce_ops import Adasum, Average, Sum
from hvdlite.training.codecs import NoneCompressor, check_compression, compress
from hvdlite.training.step_check import StepCheck

GROUP_BYTES = 2**20  # smallest group of gradients: each group costs about 10 us of a core
_LONGEST_NAME = 200  # bytes of a parameter's name: with a prefix, a tensor's name may have 255
_MOST_KEPT = 64  # a trainer or optimizer keeps so many descriptions of groups of gradients


class Reduction(NamedTuple):
    """Options, equal on every rank, for the reduction of gradients.

    :param compression: a value of ``Compression``, or a class with the same methods; rows of sparse
        gradients are not compressed.
    :param predivide_factor: gradients are divided by this factor f before they are summed, and the
        sum is multiplied by f / size.
    :param num_groups: the number of groups with equal numbers of gradients; 0: groups by bytes.
    :param op: Average, Sum or Adasum.
    :param process_set: the ranks that reduce; a rank outside the set trains alone.
    :param sparse_as_dense: send sparse gradients as dense arrays; the result has no zero rows.
    :param sums: True, with op Average: return sums, because the update applies the factor f / size.
    """

    compression: Any = NoneCompressor
    predivide_factor: float = 1.0
    num_groups: int = 0
    op: int = Average
    process_set: ProcessSet = global_process_set
    sparse_as_dense: bool = False
    sums: bool = False

    def check(self) -> "Reduction":
        """Return this reduction; raise ValueError if an argument is wrong."""
        factor = self.predivide_factor
        number(factor, "gradient_predivide_factor")
        whole(self.num_groups, "num_groups", "0 or a number of groups", range(2**31))
        if not (math.isfinite(factor) and factor > 0):
            raise ValueError(f"gradient_predivide_factor is {factor}: expected a positive number")
        if type(self.op) is not int or self.op not in (Average, Sum, Adasum):
            raise wrong("op", self.op, "hvdlite.Average, hvdlite.Sum or hvdlite.Adasum")
        if factor != 1 and self.op != Average:
            raise ValueError(
                f"gradient_predivide_factor is {factor}: expected 1, because op is not Average"
            )
        check_process_set(self.process_set).included()  # raises if the set is not registered
        check_compression(self.compression)
        return self

    def of_arrays(self) -> tuple:
        """Return (op, (prescale, postscale)) for an allreduce of gradients."""
        factor = self.predivide_factor
        return (Sum, (1 / factor, 1.0)) if self.sums else (self.op, (1 / factor, factor))

    def is_alone(self) -> bool:
        """Return True if this rank is not in the process set."""
        return self.process_set._group is None and not self.process_set.included()

    def members(self) -> dict:
        """Return the members of ``hvd_tensor``; raise if this rank is not in the process set."""
        op, scales = self.of_arrays()
        return reduction(op, scales, self.process_set)

    def groups(self, items: Sequence, size_of: Callable[[Any], int]) -> List[Sequence]:
        """Split the items into groups; one operation reduces one group.

        All ranks have the items in the same order.

        :param size_of: returns the size of an item in bytes.
        """
        if self.num_groups:
            return split(items, self.num_groups)
        return split_by_bytes(items, [size_of(item) for item in items])


class GradientReducer:
    """Reduces the gradients of one owner, and keeps their C descriptions for later steps.

    :param owner: the name that ``names.owner_name`` gave to the optimizer or trainer.
    :ivar step_check: compares the step and its variables between ranks; None: no comparison.
    """

    def __init__(
        self, owner: str, reduction: Reduction, step_check: Optional[StepCheck] = None
    ) -> None:
        self.owner, self.reduction, self.step_check = owner, reduction, step_check
        self.forget()

    def forget(self) -> None:
        """Delete all kept descriptions."""
        self._kept: Dict[tuple, Any] = {}

    def get_or_make(self, key: tuple, make: Callable[[], Any]) -> Any:
        """Return the result of ``make()``, or of an earlier call with the same key."""
        found = self._kept.get(key)
        if found is None:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            found = self._kept[key] = make()
        return found

    def __reduce__(self) -> tuple:
        # The kept descriptions contain C pointers, so a copy makes new descriptions.
        return GradientReducer, (self.owner, self.reduction, self.step_check)

    def name(self, label: Any, number: Any = 0, others: int = 0) -> str:
        """Return the name of an allreduce of a gradient and of ``others`` more gradients.

        :param label: the gradient's label; ``number`` replaces the label if it is too long.
        """
        short = label if len(str(label).encode()) <= _LONGEST_NAME else number
        return f"allreduce.{self.owner}.{short}{f' and {others} more' if others else ''}"

    def reduce_at(self, grads: Sequence, labels: Sequence[int], reduce: Callable) -> List:
        """Return a list of all gradients, in which the gradients at ``labels`` are reduced.

        :param labels: positions in ``grads``, which also name the tensors.
        :param reduce: reduces compressed tensors: called with ``labels`` and the tensors.
        """
        results = list(grads)
        if labels:
            sent, restored = compress([grads[i] for i in labels], self.reduction.compression)
            for i, each in zip(labels, restored(reduce(labels, sent))):
                results[i] = each
        return results

    def start(self, labels: Sequence[int], arrays: Sequence[np.ndarray]) -> Handle:
        """Start allreduces of NumPy arrays; the handle's result is a list of new arrays."""
        arrays = [np.asarray(array, order="C") for array in arrays]
        outs = [np.empty(array.shape, array.dtype) for array in arrays]
        group = group_of(self.reduction.process_set)
        key = (group, *labels, *[(array.dtype, array.shape) for array in arrays])
        described = self.get_or_make(key, lambda: self._describe(labels, arrays))
        begins = [each.__array_interface__["data"][0] for each in (*arrays, *outs)]
        n = len(arrays)
        started = described.start(begins[:n], begins[n:], (arrays, outs))

        def finish() -> List[np.ndarray]:
            started.finish()
            return outs

        return Handle(started.done, finish)

    def _describe(self, labels, arrays) -> Repeated:
        memories = [memory_of(dense(array)) for array in arrays]
        names = [self.name(label) for label in labels]
        return Repeated(lib.HVD_ALLREDUCE, names, memories, [self.reduction.members()] * len(names))


def reduction_of(
    compression=NoneCompressor, sparse_as_dense: bool = False, op: int = Average,
    gradient_predivide_factor: float = 1.0, groups=None, num_groups: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Reduction:  # fmt: skip
    """Return the Reduction for Horovod's arguments.

    :param groups: the number of groups, or lists of variables; only the number of lists is used.
    :raises ValueError: a wrong argument.
    """
    parts = num_groups if groups is None else groups
    if isinstance(groups, (list, tuple)):
        parts = len(groups)
    return Reduction(
        compression, gradient_predivide_factor, parts, op_of(None, op), process_set, sparse_as_dense
    ).check()


def agree_on_layers(
    owner: str, names: Sequence[str], facts: Sequence[str], process_set: ProcessSet
) -> None:
    """Raise unless all ranks have the same layers in the same order. Collective.

    :param names: the layers' names. Numbers in the names may differ, because Gluon counts the
        blocks of each process.
    :param facts: texts that must be equal, such as shapes.
    """
    agree(
        owner,
        [f"{shape_of_name(name)} {fact}" for name, fact in zip(names, facts)],
        [f"{name} {fact}" for name, fact in zip(names, facts)],
        process_set,
    )


def keep_local(register: Callable[[Any], None], layers) -> None:
    """Call ``register`` with the trainable weights of local layers (Horovod's local_layers).

    :param layers: a layer, several layers, or None.
    """
    for layer in layers if isinstance(layers, (list, tuple, set)) else [layers]:
        for weight in layer.trainable_weights if layer is not None else ():
            register(weight)


def average_all_but(
    local: Collection[int], variables: Sequence, grads: Sequence,
    average: Callable[[List], Sequence], divide: Callable[[Any], Any],
) -> List:  # fmt: skip
    """Average the gradients, except those of local variables, which are only divided; return all.

    :param local: the ``id`` of each local variable.
    :param average: averages the gradients of all other variables over ranks.
    :param divide: divides the gradient of a local variable by the number of ranks.
    """
    if not local:
        return list(average(list(grads)))
    is_local = [id(variable) in local for variable in variables]
    averaged = iter(average([grad for grad, own in zip(grads, is_local) if not own]))
    return [divide(grad) if own else next(averaged) for grad, own in zip(grads, is_local)]


def check_passes(passes: int) -> int:
    """Return ``backward_passes_per_step``; raise ValueError unless it is at least 1."""
    return whole(passes, "backward_passes_per_step", "at least 1 pass", range(1, 2**31))


def split(items: Sequence, parts: int) -> List[Sequence]:
    """Split the items into ``parts`` runs of nearly equal length; leave out empty runs."""
    ends = [len(items) * (i + 1) // parts for i in range(parts)]
    runs = [items[start:end] for start, end in zip([0, *ends], ends)]
    return [run for run in runs if len(run)]


def split_by_bytes(items: Sequence, sizes: Sequence[int]) -> List[Sequence]:
    """Split the items into runs of at least GROUP_BYTES each; only the first may be smaller.

    Backward writes gradients from the last layer to the first. The update waits for the first run,
    which is ready last, so splitting from the end makes this run small.
    """
    runs, end, total = [], len(items), 0
    for start in reversed(range(len(items))):
        total += sizes[start]
        if total >= GROUP_BYTES or start == 0:
            runs.append(items[start:end])
            end, total = start, 0
    return runs[::-1]
