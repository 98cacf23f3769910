"""The gradients of one optimizer: reduced over ranks as backward writes them."""

import contextlib
import weakref
from collections import defaultdict
from typing import Dict, List, Optional, Sequence, Set

import torch

from hvdlite.core import shared_memory
from hvdlite.core.native import HvdliteError
from hvdlite.core.objects import agree, allgather_object
from hvdlite.torch import ops
from hvdlite.torch.buckets import Bucket, can_share, is_elementwise, sizes_of
from hvdlite.torch.sparse import allreduce_sparse
from hvdlite.torch.tensors import check
from hvdlite.training.plan import Reduction, split, split_by_bytes

_LONGEST_NAME = 200  # of a parameter in a tensor's name, which has room for 255 bytes


class Gradients:
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
        self.passes = passes
        self._owner, self._reduction, self._groups = owner, reduction, groups
        self._names: Dict[torch.Tensor, str] = {}
        self._left: Dict[torch.Tensor, int] = {}  # passes until it may be reduced
        self._written: List[torch.Tensor] = []  # in this step, in the order of backward
        self._buckets: Optional[List[Bucket]] = None
        self._places: Dict[torch.Tensor, tuple] = {}  # bucket and position in it
        self._sparse: List[torch.Tensor] = []
        self._sparse_names: Set[str] = set()
        self._frozen: Dict[torch.Tensor, str] = {}  # that want no gradient, so far
        self.add(named)

    def add(self, named: Dict[torch.Tensor, str]) -> None:
        """Reduce these, too, from the next step on; on every rank."""
        for param, name in named.items():
            check(name, param)
            if param.requires_grad:
                self._names[param], self._left[param] = name, self.passes
                param.register_post_accumulate_grad_hook(_calling(weakref.ref(self)))
            else:
                self._frozen[param] = name
        self._buckets = None

    @property
    def is_due(self) -> bool:
        """Whether backward has written gradients that :meth:`finish` has not reduced yet."""
        return bool(self._written)

    def restart(self) -> None:
        """Count passes anew."""
        self._written.clear()
        self._left = dict.fromkeys(self._names, self.passes)

    def begin_anew(self) -> None:
        """Give up what is on its way to ranks that are gone, and lay out anew in the next step."""
        for bucket in self._buckets or ():
            if bucket.is_started:
                with contextlib.suppress(HvdliteError):
                    bucket.finish()
        self._buckets = None
        self.restart()

    def written(self, param: torch.Tensor) -> None:
        """Take notice that backward has written the parameter's gradient."""
        left = self._left[param] = self._left[param] - 1
        if left < 0:
            raise RuntimeError(
                f"the gradient of '{self._names[param]}' was computed more often than "
                f"backward_passes_per_step={self.passes} times: call step() or synchronize() first"
            )
        if left:
            return
        self._written.append(param)
        if self._buckets is not None and param in self._places:
            bucket, at = self._places[param]
            if bucket.write(at):
                self._start(bucket)

    def finish(self) -> None:
        """Reduce what has not been reduced yet, and wait until all gradients are there.

        :raises hvdlite.HvdliteError: the ranks have different parameters, or one has left.
        """
        thawed = {param: name for param, name in self._frozen.items() if param.requires_grad}
        if thawed:
            self._frozen = {p: name for p, name in self._frozen.items() if p not in thawed}
            self.add(thawed)
        buckets = self._made_buckets()
        for bucket in buckets:
            if not bucket.is_started:
                bucket.write_others()
                self._start(bucket)
        errors = []
        for bucket in buckets:
            try:
                bucket.finish()
            except Exception as error:  # the others are waited for all the same
                errors.append(error)
        self.restart()
        if errors:
            raise errors[0]
        for param in self._sparse:
            how = self._reduction.op, self._reduction.process_set
            allreduce_sparse(param, f"{self._owner}.{self._names[param]}", *how)
        if self._reduction.sparse_as_dense:
            self._make_sparse_again()

    def average_loss(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss of all ranks' batches, as an optimizer that compares losses needs it."""
        op, process_set = self._reduction.op, self._reduction.process_set
        return ops.allreduce(loss, name=f"{self._owner}.loss", op=op, process_set=process_set)

    def _start(self, bucket: Bucket) -> None:
        bucket.start(-self._made_buckets().index(bucket))

    def _made_buckets(self) -> List[Bucket]:
        if self._buckets is None:
            self._buckets = self._make_buckets()
        return self._buckets

    def _make_buckets(self) -> List[Bucket]:
        """Collective: what ranks found out in this step decides it, rank 0 where they differ."""
        names = {name: param for param, name in self._names.items()}
        process_set = self._reduction.process_set
        facts = [f"{n} ({p.dtype}, {tuple(p.shape)}, {p.stride()})" for n, p in names.items()]
        agree(self._owner, facts, process_set=process_set, remedy="Make the same model everywhere.")
        seen = [self._names[param] for param in reversed(self._written)]
        sparse = [n for n, p in names.items() if p.grad is not None and p.grad.is_sparse]
        everyone = allgather_object((seen, sparse), f"order.{self._owner}", process_set)
        order, _ = everyone[0]
        order = [*(name for name in names if name not in order), *order]
        self._sparse_names = {name for _, theirs in everyone for name in theirs}
        rows = [] if self._reduction.sparse_as_dense else self._sparse_names
        self._sparse = [param for name, param in names.items() if name in rows]
        return self._lay_out([names[name] for name in order if name not in rows])

    def _lay_out(self, params: Sequence[torch.Tensor]) -> List[Bucket]:
        shared = can_share(self._reduction)
        memory = shared_memory.SharedMemory.reserve() if shared else None
        buckets = [
            Bucket(self._name(group), group, self._reduction, memory)
            for group in self._split(params)
        ]
        self._places = {
            param: (bucket, at) for bucket in buckets for at, param in enumerate(bucket.params)
        }
        if shared:
            shared_memory.join(memory, self._owner)
        return buckets

    def _split(self, params: Sequence[torch.Tensor]) -> List[Sequence]:
        """Return groups of parameters of one dtype, the front layers first."""
        if not is_elementwise(self._reduction):
            return [[param] for param in params]
        chosen = {param for group in self._groups for param in group}
        groups = [*self._groups, [param for param in params if param not in chosen]]
        runs: List[Sequence] = []
        for group in groups:
            of_dtype = defaultdict(list)
            for param in group:
                of_dtype[param.dtype].append(param)
            for each in of_dtype.values():
                runs.extend(self._runs(each) if group is groups[-1] else [each])
        return runs

    def _runs(self, params: Sequence[torch.Tensor]) -> List[Sequence]:
        if self._reduction.num_groups:
            return split(params, self._reduction.num_groups)
        return split_by_bytes(params, sizes_of(params))

    def _name(self, params: Sequence[torch.Tensor]) -> str:
        first = self._names[params[0]]
        if len(first.encode()) > _LONGEST_NAME:
            first = str(list(self._names).index(params[0]))
        others = f" and {len(params) - 1} more" if len(params) > 1 else ""
        return f"allreduce.{self._owner}.{first}{others}"

    def _make_sparse_again(self) -> None:
        for param, name in self._names.items():
            if name in self._sparse_names and param.grad is not None:
                param.grad = param.grad.to_sparse(1)


def _calling(owner: "weakref.ref[Gradients]"):
    """Return a hook that does nothing once its owner, the optimizer's, is gone."""

    def hook(param: torch.Tensor) -> None:
        gradients = owner()
        if gradients is not None:
            gradients.written(param)

    return hook
