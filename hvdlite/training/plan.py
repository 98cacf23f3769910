"""How the gradients of a trainer or optimizer are reduced over ranks, and in which groups."""

import math
from typing import Any, List, NamedTuple, Sequence

from hvdlite.core.arguments import factor as number
from hvdlite.core.arguments import op_of, whole, wrong
from hvdlite.core.process_set import ProcessSet, checked, global_process_set
from hvdlite.core.reduce_ops import Adasum, Average, Sum
from hvdlite.training.codecs import NoneCompressor, check_compression

GROUP_BYTES = 2**20  # of gradients in one operation, which costs some 10 us of a core


class Reduction(NamedTuple):
    """How gradients are reduced over ranks; the same on every rank.

    :param compression: one of ``Compression``, or a class like them; rows of sparse gradients
        are not compressed.
    :param predivide_factor: f: gradients are divided by f before they are summed, and multiplied by
        f / size after it.
    :param num_groups: the number of groups, with equally many gradients each; 0: group by bytes.
    :param op: Average, Sum or Adasum.
    :param process_set: the ranks that reduce; a rank outside of it trains alone.
    :param sparse_as_dense: send sparse gradients whole; the result leaves out rows of zeros.
    :param sums: with op Average: only sum the gradients, divided by f; the update does the rest.
    """

    compression: Any = NoneCompressor
    predivide_factor: float = 1.0
    num_groups: int = 0
    op: int = Average
    process_set: ProcessSet = global_process_set
    sparse_as_dense: bool = False
    sums: bool = False

    def checked(self) -> "Reduction":
        """Return this reduction; raise ValueError if an argument is wrong."""
        factor = self.predivide_factor
        number(factor, "gradient_predivide_factor")
        whole(self.num_groups, "num_groups", "0 or a number of groups", range(2**31))
        if not (math.isfinite(factor) and factor > 0):
            raise ValueError(f"gradient_predivide_factor is {factor}: expected a positive number")
        if type(self.op) is not int or self.op not in (Average, Sum, Adasum):
            raise wrong("op", self.op, "hvdlite.Average, hvdlite.Sum or hvdlite.Adasum")
        if factor != 1 and self.op != Average:
            raise ValueError(f"gradient_predivide_factor is {factor}: it goes with op=Average only")
        checked(self.process_set).included()  # raises unless it is registered
        check_compression(self.compression)
        return self

    def of_arrays(self) -> tuple:
        """Return op, (prescale, postscale) of an allreduce of gradients."""
        factor = self.predivide_factor
        return (Sum, (1 / factor, 1.0)) if self.sums else (self.op, (1 / factor, factor))


def reduction_of(
    compression=NoneCompressor, sparse_as_dense: bool = False, op: int = Average,
    gradient_predivide_factor: float = 1.0, groups=None, num_groups: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Reduction:  # fmt: skip
    """Return the reduction that Horovod's arguments ask for.

    :param groups: a number of groups, or lists of variables; only the number of lists counts, as
        all gradients of one step are fused.
    :raises ValueError: an argument that makes no sense.
    """
    parts = num_groups if groups is None else groups
    if isinstance(groups, (list, tuple)):
        parts = len(groups)
    return Reduction(
        compression, gradient_predivide_factor, parts, op_of(None, op), process_set, sparse_as_dense
    ).checked()


def check_passes(passes: int) -> int:
    """Return ``backward_passes_per_step``; raise ValueError if it is no count."""
    return whole(passes, "backward_passes_per_step", "a number of passes from 1", range(1, 2**31))


def split(items: Sequence, parts: int) -> List[Sequence]:
    """Split the items into ``parts`` runs whose lengths differ by one at most; drop empty ones."""
    ends = [len(items) * (i + 1) // parts for i in range(parts)]
    runs = [items[start:end] for start, end in zip([0, *ends], ends)]
    return [run for run in runs if len(run)]


def split_by_bytes(items: Sequence, sizes: Sequence[int]) -> List[Sequence]:
    """Split the items into runs of at least GROUP_BYTES each; only the first may be smaller.

    Backward writes gradients from the last layer to the first. So the runs are cut from the end,
    and the run that is ready last, for which the update waits, is a small one.
    """
    runs, end, total = [], len(items), 0
    for start in reversed(range(len(items))):
        total += sizes[start]
        if total >= GROUP_BYTES or start == 0:
            runs.append(items[start:end])
            end, total = start, 0
    return runs[::-1]
