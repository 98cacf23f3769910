"""ShardedTrainer: a DistributedTrainer that keeps weights once per host, states once per job."""

import pickle
from typing import Any, Callable, Collection, Dict, List, Optional, Set

import mxnet as mx
import numpy as np

from hvdlite import numpy as collectives
from hvdlite.core import shared_memory, topology
from hvdlite.core.agreement import agree
from hvdlite.core.names import tensor_name
from hvdlite.core.native import HvdliteValueError
from hvdlite.core.reduce_ops import Average, Max
from hvdlite.mxnet.gradients import Gradients
from hvdlite.mxnet.host_weights import (
    HostWeight,
    HostWeights,
    Stripes,
    arrays_of,
    can_move,
    with_arrays,
)
from hvdlite.mxnet.states import whole_states
from hvdlite.mxnet.trainer import DistributedTrainer
from hvdlite.mxnet.update import ByParts, ByRule, rates_of, rule_of

_REDUCED = Max, (1.0, 1.0)  # op and scales for equal gradients on all ranks: they change nothing

_UNSUITED = {"Nadam": "counts calls of update(), and each rank makes only some of these calls"}


_ELSEWHERE = (
    "each host of the job had some of the optimizer's states, and the job has ended: save states "
    "before its end, or load_states() now"
)


class HostUpdater(mx.optimizer.Updater):
    """An ``mx.optimizer.Updater`` with one copy of the weights per host, after :meth:`share`.

    If the C library implements the optimizer's rule, each rank updates its part of the weights in
    the pass that sums the gradients. For other optimizers each rank runs MXNet's operators on its
    part: slices of each array, or whole arrays if the optimizer can't work on slices.

    ``states`` has the states of all parameters on every rank. But if there are several hosts, and
    the C library implements the rule, ``states`` has only this host's parts of the states of large
    weights (``host_weights.py``), and :meth:`whole_states` is collective.
    """

    def __init__(self, optimizer) -> None:
        why = _UNSUITED.get(type(optimizer).__name__)
        if why:
            raise HvdliteValueError(
                f"{type(optimizer).__name__} {why}: use hvdlite.DistributedTrainer"
            )
        super().__init__(optimizer)
        self.sums = False  # True: the next update must also sum the gradients over ranks
        self._weights = HostWeights(self._state_of)
        self._gradients: Optional[Gradients] = None
        self._single: Set[int] = set()  # indices of shared weights in single precision
        self._fused: Dict[tuple, ByRule] = {}
        self._parts: Optional[ByParts] = None

    def share(self, params: Dict[int, Any], gradients: Gradients) -> None:
        """Move weights and states into memory that the ranks of the host share. Collective.

        :param params: initialized parameters by index, in the same order on all ranks.
        :param gradients: the names and the reduction of the gradients.
        """
        rule = rule_of(self.optimizer)
        by_rule = f" by rule {rule.number}" if rule else ""
        agree(
            f"{gradients.owner}, optimizer",
            [f"{type(self.optimizer).__name__}{by_rule}"],
            remedy="Give the trainers of all ranks the same optimizer.",
        )
        self._gradients = gradients
        movable = {index: param for index, param in params.items() if can_move(param)}
        self._weights.move(movable, gradients.owner, rule is not None)
        mx.nd.waitall()  # wait until MXNet has freed the private copies
        shared_memory.trim_heap()
        for index, host_weight in self._weights.by_index.items():
            self.states[index], self.states_synced[index] = host_weight.states, True
            if host_weight.shared.dtype == np.float32:
                self._single.add(index)

    def unshare(self, params: Dict[int, Any]) -> None:
        """Move weights and states back to private memory of this rank."""
        for index, host_weight in self._weights.by_index.items():
            if self.states.get(index) is host_weight.states:
                if host_weight.stripes:
                    raise HvdliteValueError(_ELSEWHERE)
                own = [array.copy() for array in arrays_of(host_weight.states)]
                self.states[index] = with_arrays(host_weight.states, own)
        self._weights.leave(params)
        self._gradients, self._parts = None, None
        self._single.clear()
        self._fused.clear()

    def has(self, index: int) -> bool:
        """Return True if the ranks of each host share the parameter's weight."""
        return index in self._weights.by_index

    def fused(self) -> Set[int]:
        """Return the indices of parameters whose gradients the update itself can sum."""
        return self._single if rule_of(self.optimizer) else set()

    def barriers(self) -> List[str]:
        """Return the names of a step's barriers, between which ranks update parts of weights."""
        assert self._gradients is not None
        parts = set(self._weights.by_index) - self.fused()
        return ByParts.barriers(self._gradients.owner) if parts else []

    def whole_states(self) -> Dict[int, Any]:
        """Return all values of all states. Collective if the states are divided among hosts."""
        return {index: self._whole(index, states) for index, states in self.states.items()}

    def get_states(self, dump_optimizer=False) -> bytes:
        """Return :meth:`whole_states` in MXNet's file format; collective if ``whole_states`` is."""
        states = self.whole_states()
        return pickle.dumps((states, self.optimizer) if dump_optimizer else states)

    def __call__(self, index, grad, weight) -> None:
        """Update the weights; arguments as for MXNet's updaters. Collective."""
        several = isinstance(index, (list, tuple))
        lists = (index, grad, weight) if several else ([index], [grad], [weight])
        indices, grads, weights = map(list, lists)
        host_weights = [self._refresh(i, each) for i, each in zip(indices, weights)]
        by_rule = self.fused()
        private = [at for at, host_weight in enumerate(host_weights) if host_weight is None]
        fused = [at for at, i in enumerate(indices) if i in by_rule]
        parted = sorted(set(range(len(indices))) - set(private) - set(fused))
        if fused:
            self._update_fused([indices[at] for at in fused], [grads[at] for at in fused])
        if parted:
            self._update_parts([indices[at] for at in parted], [grads[at] for at in parted])
        if private:
            super().__call__(*([each[at] for at in private] for each in (indices, grads, weights)))

    def _state_of(self, index: int, weight, stripes: Optional[Stripes]):
        if index not in self.states:
            weight = stripes.cut(weight) if stripes else weight
            return self.optimizer.create_state_multi_precision(index, weight)
        loaded = self.states[index]  # load_states() was called before the first step
        if not stripes:
            return loaded
        return with_arrays(loaded, [stripes.cut(array) for array in arrays_of(loaded)])

    def _whole(self, index: int, states):
        host_weight = self._weights.by_index.get(index)
        if host_weight is None or not host_weight.stripes or states is not host_weight.states:
            return states
        if not topology.is_initialized():
            raise HvdliteValueError(_ELSEWHERE)
        assert self._gradients is not None
        stripes, leads = host_weight.stripes, topology.local_rank() == 0
        whole = []
        for number, array in enumerate(arrays_of(states)):
            own = stripes.own(array)
            name = tensor_name("states", f"{self._gradients.known_as(index)}.{number}")
            parts = collectives.allgather(own if leads else own[:0], name)
            whole.append(stripes.join(parts, host_weight.shared.shape))
        return with_arrays(states, whole)

    def _refresh(self, index: int, weight) -> Optional[HostWeight]:
        """Copy newly loaded states to shared memory; return the shared weight, None if private."""
        host_weight = self._weights.by_index.get(index)
        if host_weight is None:
            return None
        if not host_weight.is_of(weight):
            raise HvdliteValueError(
                f"parameter {index} has been made anew (reset_ctx, cast, initialize, or by another "
                "ShardedTrainer) since the trainer's first step: make a new trainer"
            )
        if self.states.get(index) is not host_weight.states:
            self._adopt(index, host_weight)
        return host_weight

    def _adopt(self, index: int, host_weight: HostWeight) -> None:
        """Copy loaded states to the shared memory; every rank writes the same values."""
        loaded, mine = arrays_of(self.states.get(index)), arrays_of(host_weight.states)
        if host_weight.stripes and all(a.shape == host_weight.shared.shape for a in loaded):
            loaded = [host_weight.stripes.cut(a) for a in loaded]
        if [a.shape for a in loaded] != [a.shape for a in mine]:
            raise HvdliteValueError(
                f"the loaded states of parameter {index} have other shapes than the states that "
                "they replace: make a new trainer, and load the states before its first step"
            )
        for source, target in zip(loaded, mine):
            source.astype(target.dtype, copy=False).copyto(target)
            target.wait_to_read()
        self.states[index], self.states_synced[index] = host_weight.states, True

    def _update_fused(self, indices: List[int], grads: List) -> None:
        assert self._gradients is not None
        by_index = dict(zip(indices, grads))
        order = self._gradients.in_order(indices)
        states = self._gradients.states_of(order, self._gradients.reduction.process_set)
        key = (*order, self.sums)
        fused = None if states else self._fused.get(key)
        rule = rule_of(self.optimizer)
        assert rule is not None
        if fused is None or not fused.is_for(rule.number, by_index):
            reduction = self._gradients.reduction.of_arrays() if self.sums else _REDUCED
            fused = ByRule(
                rule.number, self._weights, self._gradients, reduction,
                {index: by_index[index] for index in order},
            )  # fmt: skip
            if not states:
                self._fused[key] = fused
        fused.push(rule, rates_of(self.optimizer, order))

    def _update_parts(self, indices: List[int], grads: List) -> None:
        assert self._gradients is not None
        if any(self._weights.by_index[index].stripes for index in indices):
            raise HvdliteValueError(
                "the optimizer's settings have changed since the first step, and with the new "
                "settings the optimizer can't use states that are divided among the job's hosts: "
                "make a new trainer with these settings"
            )
        if self._parts is None:
            self._parts = ByParts(self._weights, self._gradients)
        self._parts.update(self.optimizer, indices, grads)


class ShardedTrainer(DistributedTrainer):
    """A ``DistributedTrainer`` with one copy of the weights per host; each rank updates a part.

    The first ``step`` moves the trained weights and the optimizer's states to memory that all ranks
    of a host map. A rank's parameters are views of this memory. Each rank sums its part of the
    gradients and immediately updates the same part of the weights, so a step updates each weight
    once per host; ``DistributedTrainer`` updates each weight once per rank. The results of the two
    trainers are bitwise equal.

    If you write to weights (``load_parameters``, ``set_data``), write the same values on all ranks.
    After ``step`` do not use the gradients: some are averages, and some are this rank's own. If
    there are several hosts, all ranks must call ``save_states``, because each host has some of the
    states. No rank may call ``hvd.join()`` during a step. docs/sharding.md lists the differences
    for a script, and the supported optimizers and parameters.

    :param params: as for ``DistributedTrainer``, like all other arguments.
    :param optimizer: a name or an ``mx.optimizer.Optimizer``.
    :param optimizer_params: a dict of arguments for an optimizer given by its name.
    :param gradient_predivide_factor: a divisor before the sum over ranks, for small dtypes.
    :param prefix: the beginning of the names of the trainer's tensors.
    :param num_groups: the number of groups of gradients; 0: groups of 1 MiB or more.
    :param op: ``hvd.Average`` or ``hvd.Sum``.
    :param backward_passes_per_step: how many calls of ``step`` make one update.
    :param sparse_as_dense: send row_sparse gradients as dense arrays.
    :raises hvdlite.HvdliteValueError: the optimizer is Nadam, whose update depends on the number of
        calls.
    """

    def __init__(
        self, params, optimizer, optimizer_params=None, gradient_predivide_factor=1.0, prefix=None,
        num_groups=0, *, op=Average, backward_passes_per_step=1, sparse_as_dense=False,
    ) -> None:  # fmt: skip
        super().__init__(
            params, optimizer, optimizer_params, prefix=prefix, num_groups=num_groups, op=op,
            gradient_predivide_factor=gradient_predivide_factor, sparse_as_dense=sparse_as_dense,
            backward_passes_per_step=backward_passes_per_step,
        )  # fmt: skip
        self._sums = False  # True during step() if updates also sum the gradients over ranks

    @property
    def host_parameters(self) -> List[str]:
        """Names of the parameters of which each host has one copy; empty before the first step."""
        updater = self._updaters[0]
        shared = isinstance(updater, HostUpdater)
        return [p.name for i, p in enumerate(self._params) if shared and updater.has(i)]

    def save_states(self, fname) -> None:
        """Save all of the optimizer's states in Gluon's file format.

        If there are several hosts, all ranks must make this call: each host has some of the states.

        :param fname: the file that this rank writes; None: this rank writes no file.
        """
        if fname is None:
            whole_states(self)
        else:
            super().save_states(fname)

    def rejoin(self) -> None:
        updater = self._updaters[0]
        if isinstance(updater, HostUpdater):
            updater.unshare(dict(enumerate(self._params)))
        super().rejoin()

    def step(self, batch_size, ignore_stale_grad=False) -> None:
        """Sum the gradients over ranks and update the parameters; as for DistributedTrainer."""
        # The update can't sum gradients if AMP, or a check for stale gradients, needs averages.
        self._sums = not ignore_stale_grad and not hasattr(self, "_amp_loss_scaler")
        try:
            super().step(batch_size, ignore_stale_grad)
        finally:
            self._sums = False

    def _init_optimizer(self, optimizer, optimizer_params) -> None:
        super()._init_optimizer(optimizer, optimizer_params)
        if len(self._contexts) == 1 and topology.is_initialized():
            self._updaters: List[mx.optimizer.Updater] = [HostUpdater(self._optimizer)]

    def _requests(self) -> List[str]:
        updater = self._updaters[0]
        if not isinstance(updater, HostUpdater):
            return super()._requests()
        sums = self._gradients.requests(updater.fused() if self._sums else ())
        return [*sums, *updater.barriers()]

    def _pair(self, requests: Callable[[], List[str]]) -> bool:
        first = super()._pair(requests)
        updater = self._updaters[0]
        if first and isinstance(updater, HostUpdater):
            params = dict(enumerate(self._params))
            order = self._gradients.in_order(params)
            updater.share({i: params[i] for i in order}, self._gradients)
        return first

    def _left_out(self) -> Collection[int]:
        updater = self._updaters[0]
        if not self._sums or not isinstance(updater, HostUpdater):
            return super()._left_out()
        return {*super()._left_out(), *updater.fused()}

    def _update(self, ignore_stale_grad=False) -> None:
        updater = self._updaters[0]
        if isinstance(updater, HostUpdater):
            updater.sums = self._sums
        super()._update(ignore_stale_grad)
