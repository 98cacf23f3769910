"""Averages the gradients of one trainer or optimizer across ranks."""

import functools
import itertools
from typing import (
    Any,
    Callable,
    Collection,
    Dict,
    Iterable,
    List,
    NamedTuple,
    Optional,
    Sequence,
)

import mxnet as mx
import numpy as np

from hvdlite.core.agreement import agree, meet
from hvdlite.core.names import natural_order, owner_name, tensor_name
from hvdlite.core.native import lib
from hvdlite.core.process_set import ProcessSet, global_process_set, group_of
from hvdlite.core.reduce_ops import Average
from hvdlite.mxnet.changes import Compared, fact
from hvdlite.mxnet.collectives import allreduce_, nbytes_of, reduction
from hvdlite.mxnet.loads import Loads
from hvdlite.mxnet.push import InPlace, Settings, push
from hvdlite.mxnet.sparse import allreduce_rows, is_sparse
from hvdlite.training.codecs import NoneCompressor, check_compression, codec_of
from hvdlite.training.plan import GradientReducer, Reduction, agree_on_layers


def common_order(params: Dict[int, Any]) -> List[int]:
    """Return the indices of parameters in an order that is the same on every rank.

    Gluon's names contain a count of blocks that may differ between ranks: dense9 and dense10 here,
    dense10 and dense11 there. Alphabetical order would then differ between ranks; natural order
    does not, because it sorts counts by value. In MXNet 2 several parameters have the same name,
    because a name is unique within its block only; then keep the trainer's order, which is equal on
    all ranks.
    """
    indices = sorted(params)
    names = [params[i].name for i in indices]
    if len(set(names)) < len(names):
        return indices
    return [indices[i] for i in natural_order(names)]


def agree_on_order(
    owner: str, params: Dict[int, Any], labels: Dict[int, int], process_set: ProcessSet
) -> None:
    """Raise unless all ranks have the same order of sparse gradients, to prevent a deadlock."""
    sparse = [i for i in sorted(params) if params[i]._grad_stype != "default"]
    if len(sparse) > 1:
        agree(
            f"{owner}, order of row_sparse gradients",
            [str(labels[i]) for i in sparse],
            [params[i].name for i in sparse],
            process_set,
        )


class Gradients(GradientReducer, Loads):
    """Averages gradients over ranks, in place, under names that are the same on every rank.

    A gradient is a list of arrays, one for each context of the parameter. The sum of these arrays
    is averaged, and the result is copied to each array. A rank outside the process set only adds up
    its own arrays.

    :param owner: the name that ``names.owner_name`` gave to the trainer or optimizer.
    :param passes: the number of backward passes of a step, the same on all ranks.
    """

    def __init__(self, owner: str, reduction: Reduction, passes: int = 1) -> None:
        super().__init__(owner, reduction)
        self._passes = passes
        self._is_unnamed_copy = False
        self.restart()

    def copy(self) -> "Gradients":
        """Return an object with the same settings, which takes a numbered name at its first use.

        If a copy took its name now, a copy on one rank only would shift the numbers of this rank's
        later optimizers.
        """
        made = Gradients(self.owner.split(".copy")[0], self.reduction, self._passes)
        made._is_unnamed_copy = True
        return made

    def _take_name(self) -> None:
        if self._is_unnamed_copy:
            left_out, self._is_unnamed_copy = self.left_out(), False
            self.owner = owner_name(f"{self.owner}.copy", self.reduction.process_set)
            self.leave_out(left_out)

    def restart(self) -> None:
        """Forget the labels and residuals of all parameters, so that ranks match them again."""
        self.loaded(0)
        self._last_rescale = ()
        self.alone = not self.reduction.process_set.included()
        self._reducer = Reducer(self.reduction.compression)
        self._labels: Dict[int, int] = {}
        self._compared: Optional[Compared] = None
        self._met = -1
        self.forget()

    @property
    def has_left_out(self) -> bool:
        return bool(self._reducer.residuals)

    def left_out(self) -> Dict[str, np.ndarray]:
        """Return this rank's compression residuals, by the labels of the gradients."""
        begin = self.name("")
        return {
            name[len(begin) :]: residual.asnumpy()
            for name, residual in self._reducer.residuals.items()
            if name.startswith(begin)
        }

    def leave_out(self, left_out: Dict[str, np.ndarray]) -> None:
        """Replace the compression residuals, which are added to the next gradients."""
        residuals = {self.name(label): mx.nd.array(each) for label, each in left_out.items()}
        self._reducer.residuals = residuals

    def pair(
        self, params: Dict[int, Any], requests: Optional[Callable[[], List[str]]] = None
    ) -> bool:
        """Give each parameter, by index, a label that is equal on all ranks. Collective.

        Raise unless all ranks have the same layers. Later calls do nothing, unless the script has
        changed parameters. Return True at the first call.

        :param requests: returns the names of the tensors that a rank without changed parameters
            submits next; default: :meth:`requests`.
        """
        first, compared = not self._labels, self._compared
        if self.alone:
            return False
        if compared and not compared.tell_changes(
            params, requests or self.requests, self.reduction.process_set
        ):
            return False
        self._take_name()
        order, process_set = common_order(params), self.reduction.process_set
        facts = [fact(params[i]) for i in order]
        names = [*(params[i].name for i in order), "backward_passes_per_step"]
        agree_on_layers(self.owner, names, [*facts, str(self._passes)], process_set)
        self._labels = {index: label for label, index in enumerate(order)}
        self.forget()
        agree_on_order(self.owner, params, self._labels, process_set)
        self._compared = Compared(params, self._labels)
        return first

    def requests(self, updated: Collection[int] = ()) -> List[str]:
        """Return the names of the tensors that a step submits, up to the first sparse gradient's.

        :param updated: indices of parameters whose allreduce also updates the weights.
        """
        trained = self._compared.trained if self._compared else {}
        order, as_dense = self.in_order(trained), self.reduction.sparse_as_dense
        waits = [i for i in order if trained[i] and not as_dense]
        sums = [self.name(self._labels[i]) for i in order if i not in {*waits, *updated}]
        if waits:
            return [*sums, f"sparse.{self.known_as(waits[0])}.rows"]
        return [*sums, *(tensor_name("update", self.known_as(i)) for i in order if i in updated)]

    def in_order(self, indices: Iterable[int]) -> List[int]:
        """Return the indices of parameters in an order that is the same on all ranks."""
        return sorted(indices, key=lambda index: self._labels.get(index, index))

    def average(self, grads: Dict[int, Sequence]) -> None:
        """Average each gradient over all ranks.

        Front layers have priority, because the next forward pass needs them first. Dense gradients
        are submitted without a wait; then each sparse gradient waits for all ranks.
        """
        if not (self._labels or self.alone):
            self._take_name()
            self._met = meet(self.owner, self._met, self.reduction.process_set)
        states = self.states_of(grads, self.reduction.process_set)
        group = 0 if self.alone else group_of(self.reduction.process_set)
        key = (group, states, *grads, *[type(arrays[0]) for arrays in grads.values()])
        layout = self.get_or_make(key, lambda: self._lay_out(grads))
        for index in layout.dense:
            first, *others = grads[index]
            for other in others:
                first += other.as_in_context(first.context)
        for operation in layout.operations:
            operation.reduce([grads[index][0] for index in operation.indices])
        for index in layout.dense:
            first, *others = grads[index]
            for other in others:
                first.copyto(other)
        for index in layout.sparse:
            self._average_sparse(index, grads[index])

    def _lay_out(self, grads: Dict[int, Sequence]) -> "_Layout":
        indices = self.in_order(grads) if self._labels else list(grads)
        sparse = [index for index in indices if is_sparse(grads[index][0])]
        dense = [index for index in indices if index not in sparse]
        firsts = {index: grads[index][0] for index in dense}
        operations = [] if self.alone else [self._operation(each) for each in self.groups(firsts)]
        return _Layout(dense, sparse, operations)

    def _operation(self, indices: Sequence[int]) -> "_Operation":
        label = self._labels.get(indices[0], indices[0])
        priority = -label if isinstance(label, int) else 0
        names = [self.name(self._labels.get(index, index)) for index in indices]
        op, scales = self.reduction.of_arrays()
        if self.reduction.compression is NoneCompressor:
            group = group_of(self.reduction.process_set)
            settings = Settings(op, scales[0], scales[1], priority, group, self.states)
            reduce = InPlace(names, settings).push
            return _Operation(indices, reduce)
        reduce_coded = functools.partial(
            self._reducer.grouped_allreduce_, names=names, priority=priority, op=op, scales=scales,
            process_set=self.reduction.process_set, states=self.states,
        )  # fmt: skip
        return _Operation(indices, reduce_coded)

    def _average_sparse(self, index: int, arrays: Sequence) -> None:
        if self.reduction.sparse_as_dense:
            total = mx.nd.add_n(*(array.tostype("default") for array in arrays))
            if not self.alone:
                self._operation([index]).reduce([total])
            total = total.tostype("row_sparse")
        elif self.alone:
            total = mx.nd.add_n(*arrays)
        else:
            op, scales = self.reduction.of_arrays()
            name, process_set = self.known_as(index), self.reduction.process_set
            total = allreduce_rows(arrays, name, op, process_set, self.states)
            if scales[0] * scales[1] != 1:
                total = total * (scales[0] * scales[1])
        for array in arrays:
            total.copyto(array)

    def groups(self, grads: Dict[int, Any]) -> List[Sequence[int]]:
        """Split the indices of gradients, in the common order, into groups for one operation."""
        return self.reduction.groups(list(grads), lambda index: nbytes_of(grads[index]))

    def known_as(self, index: int) -> str:
        """Return the gradient's name, which is equal on every rank, without "allreduce."."""
        return f"{self.owner}.{self._labels.get(index, index)}"


class _Operation(NamedTuple):
    """Gradients that are reduced together, and the function that reduces their arrays."""

    indices: Sequence[int]
    reduce: Callable[[Sequence], Any]


class _Layout(NamedTuple):
    """The operations that reduce a set of gradients, whichever arrays the gradients now have."""

    dense: List[int]
    sparse: List[int]
    operations: List[_Operation]


class Reducer:
    """Reduces one owner's tensors with one compression, and keeps the residual of each tensor."""

    def __init__(self, compression=NoneCompressor) -> None:
        check_compression(compression)
        self.compression = compression
        self.residuals: Dict[str, mx.nd.NDArray] = {}  # by the tensors' full names

    def allreduce_(
        self, tensor, name: str, priority: int = 0, op: int = Average, scales=(1.0, 1.0),
        process_set: ProcessSet = global_process_set, states: int = 0,
    ):  # fmt: skip
        """Do what ``ops.allreduce_`` does, with the compression; return ``tensor``.

        :param scales: a factor before the compression, and a factor after the reduction.
        """
        names = [tensor_name("allreduce", name, process_set)]
        self.grouped_allreduce_([tensor], names, priority, op, scales, process_set, states)
        return tensor

    def grouped_allreduce_(
        self, tensors, names: Sequence[str], priority: int, op: int, scales,
        process_set: ProcessSet, states: int = 0,
    ):  # fmt: skip
        """Do what :meth:`allreduce_` does for several tensors with full names; return them."""
        if self.compression is NoneCompressor:
            return allreduce_(names, tensors, op, scales, priority, process_set, states)
        floats = [isinstance(t, mx.nd.NDArray) and t.dtype == np.float32 for t in tensors]
        codecs = [codec_of(self.compression, is_float) for is_float in floats]
        coded = [codec is not None for codec in codecs]
        members = {**reduction(op, scales, priority, process_set), "states": states}
        self._allreduce_coded(members, *_only(coded, names, tensors, codecs))
        names, whole = _only([not each for each in coded], names, tensors)
        compressed = [self.compression.compress(tensor) for tensor in whole]
        sent = [array for array, _ in compressed]
        allreduce_(names, sent, op, scales, priority, process_set, states)
        for tensor, (array, context) in zip(whole, compressed):
            if array is not tensor:
                tensor[:] = self.compression.decompress(array, context)
        return tensors

    def _residual(self, tensor, name: str):
        known = self.residuals.get(name)
        if known is None or known.size != tensor.size:
            with mx.util.np_shape(True):  # otherwise MXNet takes a size of 0 for an unknown size
                known = mx.nd.zeros((tensor.size,), ctx=tensor.context)
            self.residuals[name] = known
        return known

    def _allreduce_coded(self, members: dict, names, tensors, codecs) -> None:
        residuals = [
            self._residual(tensor, name) if codec.has_residual else None
            for codec, name, tensor in zip(codecs, names, tensors)
        ]
        details = [{**members, "codec": c.kind, "parameter": c.parameter} for c in codecs]
        push(lib.HVD_ALLREDUCE, names, tensors, details, residuals=residuals)


def _only(chosen: Sequence[bool], *lists: Sequence) -> List[list]:
    return [list(itertools.compress(items, chosen)) for items in lists]
