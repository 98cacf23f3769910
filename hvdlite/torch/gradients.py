"""The gradients of one optimizer, reduced over ranks while backward runs."""

import contextlib
from collections import Counter
from functools import partial
from typing import Any, Callable, Dict, List, NoReturn, Optional, Sequence
from weakref import ref

import numpy as np
import torch

from hvdlite import numpy as collectives
from hvdlite.core import shared_memory
from hvdlite.core.native import HvdliteError
from hvdlite.core.reduce_ops import Sum
from hvdlite.torch import layout, ops
from hvdlite.torch.buckets import Bucket, alive, can_share, if_alive
from hvdlite.torch.changes import Changes
from hvdlite.torch.ddp import refuse_reduced_by_ddp
from hvdlite.torch.sparse import allreduce_sparse, names_of
from hvdlite.torch.tensors import check
from hvdlite.training.plan import GradientReducer, Reduction


class Gradients(GradientReducer):
    """Averages gradients over ranks; sends a bucket as soon as backward has written all of it.

    The first step learns the order in which backward writes gradients, and which gradients are
    sparse. So the allreduces of the first step begin when backward has ended. A parameter that
    backward has not reached on any rank has no bucket, because its gradient may be sparse.

    Only the newest Gradients object reduces a parameter's gradient. The hooks of two objects would
    reduce the gradient twice, and move the gradient to two memories. An older object with the same
    parameter raises when it is used, even after the newer object is freed, because ranks may free
    objects at different times.

    :param owner: the optimizer's name, as in ``names.owner_name``.
    :param named: names of the parameters, in the same order on every rank.
    :param groups: lists of parameters to send together; other parameters are grouped by size.
    :param passes: how often backward writes a gradient before it is reduced.
    """

    def __init__(
        self, owner: str, named: Dict[torch.Tensor, str], reduction: Reduction,
        groups: Sequence[Sequence] = (), passes: int = 1,
    ) -> None:  # fmt: skip
        super().__init__(owner, reduction)
        self._groups = groups
        self._names: Dict[torch.Tensor, str] = {}
        self._hooks: Dict[torch.Tensor, Any] = {}  # handles of the hooks
        # for each parameter outside of buckets, how often backward wrote its gradient in this step;
        # in the order of the writes
        self._written: Dict[torch.Tensor, int] = {}
        self._buckets: Optional[List[Bucket]] = None
        self._sparse: List[torch.Tensor] = []
        # for each parameter with a gradient, by name: True if the gradient is sparse
        self._kinds: Dict[str, bool] = {}
        self.changes = Changes(owner, reduction.process_set, passes)
        # parameters that backward has not reached on any rank so far
        self._unreached: List[torch.Tensor] = []
        # error text if a newer optimizer has taken over one of the parameters, otherwise None
        self._taken: Optional[str] = None
        # Digests of states that this rank has loaded: ranks compare _states in this step, and
        # _loaded in the next step.
        self._loaded = self._states = 0
        # the part of each gradient that compression has not sent, until a bucket takes this part
        self._left_out: Dict[str, torch.Tensor] = {}
        self.add(named)
        alive.gradients.add(self)

    def add(self, named: Dict[torch.Tensor, str]) -> None:
        """Also reduce these parameters from the next step on. Call it on every rank."""
        self._take_over(named)
        for param, name in named.items():
            check(name, param, gpu=True)
            if param.requires_grad:
                self._names[param] = name
                # `id` is a placeholder: _call() puts the real hook in its place
                self._hooks[param] = param.register_post_accumulate_grad_hook(id)
            else:
                self.changes.waiting[param] = name
        self._forget_buckets()

    def adopt(self, named: Dict[torch.Tensor, str], removed: List[str]) -> None:
        """Add parameters in this step, in which all ranks must add them.

        :param removed: names of all parameters that have left the optimizer.
        """
        self._take_over(named)
        self.changes.waiting.update(named)
        self.changes.removed = removed

    def _take_over(self, named: Dict[torch.Tensor, str]) -> None:
        for other in alive.gradients - {self}:
            other._yield_to(self, named)

    def __del__(self) -> None:
        self._remove_hooks()

    def _remove_hooks(self) -> None:
        for hook in self._hooks.values():
            hook.remove()
        self._hooks = {}

    def _yield_to(self, newer: "Gradients", named: Dict[torch.Tensor, str]) -> None:
        """Stop reducing if the newer object takes over one of this object's parameters."""
        own = {**self._names, **self.changes.waiting}
        shared = [name for param, name in own.items() if param in named]
        if not shared or self._taken:
            return
        if self.written and self.reduction.op == Sum:
            raise ValueError(
                f"parameter '{shared[0]}': backward has written its gradient for another "
                f"DistributedOptimizer, {self.owner}: call step() or synchronize() of "
                f"{self.owner}, or delete it, before you make an optimizer of this parameter"
            )
        self.begin_anew()
        self._remove_hooks()
        self._taken = f"parameter '{shared[0]}' of {self.owner} belongs to {newer.owner}"

    @property
    def written(self) -> bool:
        """Whether backward has written a gradient in this step."""
        return bool(self._written or any(bucket.written for bucket in self._buckets or ()))

    @property
    def due(self) -> bool:
        """Whether backward has written some gradient ``passes`` times in this step."""
        if self.changes.passes == 1 or not self.written:
            return self.written
        times = Counter(param for bucket in self._buckets or () for param in bucket.written)
        return max({**times, **self._written}.values()) >= self.changes.passes

    def loaded(self, digest: int) -> None:
        """Make ranks compare this digest of loaded states in the next step; 0: nothing loaded."""
        if digest and self.written:
            self._loaded = digest
        else:
            self._states, self._loaded = digest, 0

    def left_out(self) -> Dict[str, torch.Tensor]:
        """Return what compression has left out of gradients on this rank so far, by name."""
        buckets = [each for bucket in self._buckets or () for each in bucket.left_out()]
        return {**self._left_out, **{self._names[p]: part.clone() for p, part in buckets}}

    def leave_out(self, left_out: Dict[str, torch.Tensor]) -> None:
        """Make compression add these values, by parameter name, to the next gradients."""
        self._left_out = dict(left_out)
        for param, part in (each for bucket in self._buckets or () for each in bucket.left_out()):
            known = self._left_out.pop(self._names[param], None)
            part.copy_(torch.zeros_like(part) if known is None else known)

    def restart(self) -> None:
        """Count backward passes from 0 again."""
        self.changes.begin()
        self._written.clear()
        for bucket in self._buckets or ():
            bucket.written.clear()

    def note_dropped(self) -> None:
        """Record whether the script has set averages to None, for example by model.zero_grad()."""
        params = (param for bucket in self._buckets or () for param in bucket.params)
        self.changes.dropped |= any(each.grad is None and each.requires_grad for each in params)

    def begin_anew(self) -> None:
        """After a rank's death: drop pending allreduces, and make new buckets in the next step."""
        for bucket in self._buckets or ():
            if bucket.started:
                with contextlib.suppress(RuntimeError):
                    bucket.finish()
        self._forget_buckets()
        self._left_out.clear()
        self.loaded(0)
        self.restart()

    def _forget_buckets(self) -> None:
        self._left_out = self.left_out()
        self._buckets, self._unreached = None, []
        for param in self._hooks:
            self._call(partial(if_alive, Gradients._note, ref(self)), param)

    def _call(self, hook: Callable, param: torch.Tensor) -> None:
        """Replace the parameter's hook in place: PyTorch refuses new hooks on frozen parameters."""
        handle = self._hooks[param]
        handle.hooks_dict_ref()[handle.id] = hook

    def _note(self, param: torch.Tensor) -> None:
        self._written[param] = times = self._written.pop(param, 0) + 1
        if times > self.changes.passes:
            self._refuse(param)

    def _wait_for(self, bucket: Bucket, last: torch.Tensor) -> None:
        """Let the hook of ``last``, which backward calls last, start the bucket's allreduce.

        The hook of each other parameter is the method ``append`` of a list, because a function in
        Python takes several times as long as a small gradient's share of the allreduce.
        """
        for param in bucket.params:
            self._call(bucket.written.append, param)
        self._call(partial(if_alive, Gradients._is_last, ref(self), ref(bucket)), last)

    def _is_last(self, bucket: Bucket, param: torch.Tensor) -> None:
        if bucket.started:
            self._refuse(param)
        bucket.written.append(param)
        if self._is_full(bucket):
            bucket.start(self.changes.digest(self._states))

    def _is_full(self, bucket: Bucket) -> bool:
        """Return True if backward has written all gradients; raise if it wrote one too often."""
        for at, times in Counter(map(id, bucket.written)).items():
            if times > self.changes.passes:
                self._refuse(next(param for param in bucket.params if id(param) == at))
        return len(bucket.written) == self._goal(bucket)

    def _goal(self, bucket: Bucket) -> int:
        return self.changes.passes * len(bucket.params)

    def _refuse(self, param: torch.Tensor) -> NoReturn:
        passes = self.changes.passes
        raise RuntimeError(
            f"the gradient of '{self._names[param]}' was computed more than "
            f"backward_passes_per_step={passes} times: call step() or synchronize() first"
        )

    def finish(self) -> None:
        """Reduce all remaining gradients, and wait for all results.

        :raises hvdlite.HvdliteError: the ranks have different parameters, or one has left.
        """
        if self._taken:
            raise RuntimeError(
                f"{self._taken}, a newer DistributedOptimizer, which now averages the gradient. "
                "Give each optimizer its own parameters, or one optimizer all of them; in a script "
                "with two phases of training, make each phase's optimizer when the phase begins"
            )
        states = self._states
        try:
            done = self._reduce_known()
            if self._buckets is None:
                self._buckets = self._make_buckets()
                self._reduce(self._buckets)
        finally:
            self.restart()
            self._states, self._loaded = self._loaded, 0
        # the gradients in `done` were averages before the new buckets reduced them: restore them
        for bucket in self._buckets if done else ():
            for param, view in zip(bucket.params, bucket.views):
                if param in done:
                    view.copy_(done[param])
        for param in self._sparse:
            name = f"{self.owner}.{self._names[param]}"
            try:
                allreduce_sparse(param, name, self.reduction.op, self.reduction.process_set, states)
            except HvdliteError as error:
                self.changes.explain(error, self._names.values())
        if self.reduction.sparse_as_dense:
            self._make_sparse_again()

    def _reduce(self, buckets: Sequence[Bucket]) -> None:
        late, errors = [bucket for bucket in buckets if not bucket.started], []
        for bucket in late:
            bucket.start(self.changes.digest(self._states))
        for bucket in buckets:
            try:
                bucket.finish()
                doubtful = bucket in late or len(bucket.written) > self._goal(bucket)
                if doubtful and self._is_full(bucket):  # backward's order has changed
                    self._wait_for(bucket, bucket.written[-1])
            except Exception as error:  # raised below, after the other buckets have ended
                errors.append(error)
        if errors:
            frozen = [self._names[bucket.params[at]] for bucket in buckets for at in bucket.frozen]
            self.changes.explain(errors[0], self._names.values(), frozen)

    def _reduce_known(self) -> Dict[torch.Tensor, torch.Tensor]:
        """Reduce the buckets. If parameters are new, forget the buckets and return the results.

        A parameter is new if all ranks have added or thawed it, or if backward now reaches it.
        """
        known, again = self._buckets, False
        if known is not None:
            self._reduce(known)
        changes = self.changes.now()
        if known is not None:
            again = self._compare(changes, known)
        added = self.changes.settle(changes)
        if not (added or again):
            return {}
        done = {p: view.clone() for each in known or () for p, view in zip(each.params, each.views)}
        self.add(added)
        return done

    def _compare(self, changes: Dict[str, List[str]], buckets: List[Bucket]) -> bool:
        """Raise unless all ranks have the same changes; return True if new buckets are needed."""
        reached = any(param.grad is not None for param in self._unreached)
        sparse = [f"{self.owner}.{self._names[param]}" for param in self._sparse[:1]]
        names = [bucket.name for bucket in buckets]
        for name in sparse if not names else ():
            names = names_of(name, self.reduction.process_set)
        if self._unreached or not names:
            return self._any_rank(reached or bool(changes))
        self.changes.compare(changes, names, self._names.values())
        return False

    def _any_rank(self, own: bool) -> bool:
        """Return True on all ranks if ``own`` is True on any rank. Collective."""
        mark, name = np.array([own], np.int32), f"{self.owner}, reached"
        return bool(collectives.allreduce(mark, name, Sum, process_set=self.reduction.process_set))

    def average_loss(self, loss):
        """Return the average of all ranks' losses, for optimizers that compare losses."""
        is_tensor = isinstance(loss, torch.Tensor)
        own = loss.detach() if is_tensor else torch.tensor(loss, dtype=torch.float64)
        op, process_set = self.reduction.op, self.reduction.process_set
        of_all = ops.allreduce(own, name=f"{self.owner}.loss", op=op, process_set=process_set)
        return of_all if is_tensor else of_all.item()

    def _make_buckets(self) -> List[Bucket]:
        """Make buckets in the order in which rank 0's backward wrote gradients. Collective."""
        refuse_reduced_by_ddp(self._names)
        facts, reduction = self.changes.facts(self._names.values()), self.reduction
        found = layout.agreed(self.owner, self._names, facts, self._written, self._kinds, reduction)
        self._sparse, self._unreached = found.sparse, found.unreached
        return self._lay_out(layout.split(found.dense, self._groups, self.reduction))

    def _lay_out(self, groups: Sequence[Sequence[torch.Tensor]]) -> List[Bucket]:
        shared = can_share(self.reduction)
        memory = shared_memory.SharedMemory.reserve() if shared else None
        buckets = []
        for number, group in enumerate(groups):
            bucket = Bucket(self._name(group), group, self.reduction, -number, memory)
            buckets.append(bucket)
            self._wait_for(bucket, group[0])
        if shared:
            shared_memory.join(memory, self.owner)
        for param, part in (each for bucket in buckets for each in bucket.left_out()):
            if self._names[param] in self._left_out:
                part.copy_(self._left_out.pop(self._names[param]))
        return buckets

    def _name(self, params: Sequence[torch.Tensor]) -> str:
        number = [id(param) for param in self._names].index(id(params[0]))
        return self.name(self._names[params[0]], number, len(params) - 1)

    def _make_sparse_again(self) -> None:
        for param, name in self._names.items():
            if self._kinds.get(name) and param.grad is not None:
                param.grad = param.grad.to_sparse(1)
