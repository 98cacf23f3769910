"""The gradients of one optimizer: reduced over ranks as backward writes them."""

import contextlib
import weakref
from collections import defaultdict
from typing import Callable, Dict, List, Optional, Sequence, Set

import torch

from hvdlite.core import shared_memory
from hvdlite.core.native import HvdliteError
from hvdlite.core.objects import agree, allgather_object
from hvdlite.torch import ops
from hvdlite.torch.buckets import Bucket, can_share, is_elementwise
from hvdlite.torch.sparse import allreduce_sparse
from hvdlite.torch.tensors import check
from hvdlite.training.plan import Plan, Reduction


class Gradients(Plan):
    """Averages gradients over ranks; a bucket of them goes off as soon as backward has written it.

    The first step finds out in which order that is, and which gradients are sparse: so its
    allreduces begin when backward has ended.

    :param owner: who they belong to, as in ``names.owner_name``.
    :param named: names of the parameters, in the same order on every rank.
    :param groups: lists of parameters that are sent together; the others go by their size.
    :param passes: how often backward writes a gradient before it is reduced.
    """

    def __init__(
        self, owner: str, named: Dict[torch.Tensor, str], reduction: Reduction,
        groups: Sequence[Sequence] = (), passes: int = 1,
    ) -> None:  # fmt: skip
        super().__init__(owner, reduction)
        self.passes, self._groups = passes, groups
        self._names: Dict[torch.Tensor, str] = {}
        self._places: Dict[torch.Tensor, _Place] = {}
        self.written: List[torch.Tensor] = []  # in this step, in the order of backward
        self._buckets: Optional[List[Bucket]] = None
        self._sparse: List[torch.Tensor] = []
        self._sparse_names: Set[str] = set()
        self._frozen: Dict[torch.Tensor, str] = {}  # that want no gradient, so far
        self.add(named)

    def add(self, named: Dict[torch.Tensor, str]) -> None:
        """Reduce these, too, from the next step on; on every rank."""
        for param, name in named.items():
            check(name, param)
            if param.requires_grad:
                self._names[param] = name
                place = self._places[param] = _Place(self.passes)
                hook = _hook(weakref.ref(self), weakref.ref(place))
                param.register_post_accumulate_grad_hook(hook)
            else:
                self._frozen[param] = name
        self._forget_buckets()

    def restart(self) -> None:
        """Count passes anew."""
        self.written.clear()
        for place in self._places.values():
            place.left = self.passes

    def begin_anew(self) -> None:
        """Give up what is on its way to ranks that are gone, and lay out anew in the next step."""
        for bucket in self._buckets or ():
            if bucket.started:
                with contextlib.suppress(HvdliteError):
                    bucket.finish()
        self._forget_buckets()
        self.restart()

    def _forget_buckets(self) -> None:
        self._buckets = None
        for place in self._places.values():
            place.bucket = None

    def refuse(self, param: torch.Tensor) -> None:
        """Raise: backward has written the parameter's gradient once more than it may."""
        raise RuntimeError(
            f"the gradient of '{self._names[param]}' was computed more often than "
            f"backward_passes_per_step={self.passes} times: call step() or synchronize() first"
        )

    def finish(self) -> None:
        """Reduce what has not been reduced yet, and wait until all gradients are there.

        :raises hvdlite.HvdliteError: the ranks have different parameters, or one has left.
        """
        try:
            done = self._add_thawed() if self._frozen else {}
            if self._buckets is None:
                self._buckets = self._make_buckets()
            self._reduce(self._buckets)
        finally:
            self.restart()
        for param, grad in done.items():
            place = self._places[param]  # laid out anew, and reduced once more
            assert place.bucket is not None
            place.bucket.views[place.at].copy_(grad)
        for param in self._sparse:
            how = self.reduction.op, self.reduction.process_set
            allreduce_sparse(param, f"{self.owner}.{self._names[param]}", *how)
        if self.reduction.sparse_as_dense:
            self._make_sparse_again()

    @staticmethod
    def _reduce(buckets: Sequence[Bucket]) -> None:
        errors = []
        for bucket in buckets:
            if not bucket.started:
                bucket.write_others()
                bucket.start()
        for bucket in buckets:
            try:
                bucket.finish()
            except Exception as error:  # the others are waited for all the same
                errors.append(error)
        if errors:
            raise errors[0]

    def _add_thawed(self) -> Dict[torch.Tensor, torch.Tensor]:
        """Add what wants a gradient by now; return the gradients of others, which are reduced."""
        thawed = {param: name for param, name in self._frozen.items() if param.requires_grad}
        if not thawed:
            return {}
        self._frozen = {p: name for p, name in self._frozen.items() if p not in thawed}
        buckets = self._buckets or ()  # backward has started some
        self._reduce(buckets)
        self.add(thawed)
        return {p: view.clone() for each in buckets for p, view in zip(each.params, each.views)}

    def average_loss(self, loss):
        """Return the loss of all ranks' batches, as an optimizer that compares losses needs it."""
        is_tensor = isinstance(loss, torch.Tensor)
        own = loss.detach() if is_tensor else torch.tensor(loss, dtype=torch.float64)
        op, process_set = self.reduction.op, self.reduction.process_set
        of_all = ops.allreduce(own, name=f"{self.owner}.loss", op=op, process_set=process_set)
        return of_all if is_tensor else of_all.item()

    def _make_buckets(self) -> List[Bucket]:
        """Collective: what ranks found out in this step decides it, rank 0 where they differ."""
        names = {name: param for param, name in self._names.items()}
        process_set = self.reduction.process_set
        facts = [f"{n} ({p.dtype}, {tuple(p.shape)}, {p.stride()})" for n, p in names.items()]
        agree(self.owner, facts, process_set=process_set, remedy="Make the same model everywhere.")
        seen = [self._names[param] for param in reversed(self.written)]
        sparse = [n for n, p in names.items() if p.grad is not None and p.grad.is_sparse]
        everyone = allgather_object((seen, sparse), f"order.{self.owner}", process_set)
        order, _ = everyone[0]
        order = [*(name for name in names if name not in order), *order]
        self._sparse_names = {name for _, theirs in everyone for name in theirs}
        rows = [] if self.reduction.sparse_as_dense else self._sparse_names
        self._sparse = [param for name, param in names.items() if name in rows]
        return self._lay_out([names[name] for name in order if name not in rows])

    def _lay_out(self, params: Sequence[torch.Tensor]) -> List[Bucket]:
        shared = can_share(self.reduction)
        memory = shared_memory.SharedMemory.reserve() if shared else None
        buckets = []
        for number, group in enumerate(self._split(params)):
            bucket = Bucket(self._name(group), group, self.reduction, -number, memory)
            buckets.append(bucket)
            for at, param in enumerate(group):
                self._places[param].bucket, self._places[param].at = bucket, at
        if shared:
            shared_memory.join(memory, self.owner)
        return buckets

    def _split(self, params: Sequence[torch.Tensor]) -> List[Sequence]:
        """Return groups of parameters of one dtype, the front layers first."""
        if not is_elementwise(self.reduction):
            return [[param] for param in params]
        chosen = {param for group in self._groups for param in group}
        groups = [*self._groups, [param for param in params if param not in chosen]]
        runs: List[Sequence] = []
        for group in groups:
            of_dtype = defaultdict(list)
            for param in group:
                of_dtype[param.dtype].append(param)
            for each in of_dtype.values():
                last = group is groups[-1]
                runs.extend(self.reduction.groups(each, _bytes_of) if last else [each])
        return runs

    def _name(self, params: Sequence[torch.Tensor]) -> str:
        number = [id(param) for param in self._names].index(id(params[0]))
        return self.name(self._names[params[0]], number, len(params) - 1)

    def _make_sparse_again(self) -> None:
        for param, name in self._names.items():
            if name in self._sparse_names and param.grad is not None:
                param.grad = param.grad.to_sparse(1)


def _bytes_of(param: torch.Tensor) -> int:
    return param.numel() * param.element_size()


class _Place:
    """Where the gradient of a parameter goes."""

    __slots__ = ("__weakref__", "at", "bucket", "left")

    def __init__(self, left: int) -> None:
        self.left = left  # passes until it may be reduced
        self.bucket: Optional[Bucket] = None
        self.at = 0  # in the bucket


def _hook(owner: "weakref.ref[Gradients]", its: "weakref.ref[_Place]") -> Callable:
    """Return what autograd calls when it has written the gradient.

    It does nothing once its owner, the optimizer's, is gone. One call a gradient: no method is
    between it and the bucket.
    """

    def written(param: torch.Tensor) -> None:
        gradients, place = owner(), its()
        if gradients is None or place is None:
            return
        place.left -= 1
        if place.left < 0:
            gradients.refuse(param)
        if place.left == 0:
            gradients.written.append(param)
            if place.bucket is not None and place.bucket.write(place.at):
                place.bucket.start()

    return written
