"""Buckets: gradients next to each other in memory, so that one allreduce reduces them in place.

The ranks of a host share a bucket's memory, so the allreduce does not copy between ranks either. A
bucket of gradients on a GPU is on the GPU; NCCL reduces it, or hvdlite reduces a pinned copy.
"""

import sys
from operator import attrgetter, eq, is_
from typing import Any, Callable, Iterator, List, Optional, Sequence, Tuple
from weakref import WeakSet, ref

import torch

from hvdlite.core.collectives import Repeated, Started
from hvdlite.core.module_state import ModuleState
from hvdlite.core.native import ffi, lib
from hvdlite.core.process_set import global_process_set, group_of
from hvdlite.core.shared_memory import SharedMemory
from hvdlite.torch.changes import digest_of
from hvdlite.torch.exchange import mover_of
from hvdlite.torch.tensors import DELEGATED, is_packed, memory_of, on_host, written
from hvdlite.training.codecs import Codec, NoneCompressor, codec_of
from hvdlite.training.plan import Reduction

_ALIGNMENT = 64  # bytes of a cache line
_ALONE = [torch.empty(0)]
# what sys.getrefcount() returns for a view that only hvdlite uses: in a call, and under map()
_OWN_REFERENCES = sys.getrefcount(_ALONE[0])
_OWN_REFERENCES_OF_MAP = next(map(sys.getrefcount, _ALONE))
_GRAD = attrgetter("grad")
_FACTS = attrgetter("dtype", "layout", "requires_grad")


class Bucket:
    """Gradients of some parameters of one dtype, on one device.

    :param name: the name of the bucket's tensor, the same on every rank.
    :param params: the parameters, in the same order on every rank.
    :param reduction: how to reduce the gradients.
    :param priority: the waiting bucket with the highest priority is reduced first.
    :param memory: memory for the gradients; None: private memory of this process.
    """

    def __init__(
        self, name: str, params: Sequence, reduction: Reduction, priority: int,
        memory: Optional[SharedMemory],
    ) -> None:  # fmt: skip
        self.name, self.params = name, list(params)
        self._reduction, self._priority = reduction, priority
        step = _ALIGNMENT // params[0].element_size()
        starts, end = [], 0
        for param in params:
            starts.append(end)
            end += -(-param.numel() // step) * step
        self._flat, self._starts = _zeros(end, params[0], memory), starts
        self.views = [self._view(at) for at in range(len(params))]
        self._begins = [view.data_ptr() for view in self.views]
        self._residual: Optional[torch.Tensor] = None
        self._described: Any = None  # the last allreduce: its key, and its description (Repeated)
        # parameters whose gradients backward has written in this step, in order
        self.written: List[torch.Tensor] = []
        self.started: Optional[Started] = None
        # indices in `params` of parameters that no longer require a gradient; the allreduce fails
        # if the indices differ between ranks
        self.frozen: List[int] = []
        self._compressed: Any = None  # gradients, the compressor's output and `ctx`
        self._sent = self._flat
        # the memory that the allreduce reads: _sent, or a pinned copy of _sent on the host
        self._host: Optional[torch.Tensor] = None

    def start(self, states: int = 0) -> None:
        """Move the gradients into the bucket and start their allreduce.

        :param states: a digest of the states that the optimizer has just loaded, and of what the
            script has changed; must be equal on all ranks.
        """
        self._write()
        if self.frozen:
            states = -digest_of({"loaded": states, "frozen": self.frozen})
        sent, compression = self._flat, self._reduction.compression
        process_set, codec = self._reduction.process_set, self._codec()
        may_move = sent.device.type in DELEGATED
        # NCCL knows no codec, but the compressor can do the same cast on the GPU
        casts = may_move and codec is not None and not codec.has_residual
        names, plain = [self.name], self._members(states, None)
        if casts and mover_of(names, [sent], plain, process_set) is not None:
            codec = None
        if compression is not NoneCompressor and codec is None:
            whole = self.views[0] if len(self.views) == 1 else self._flat
            sent, context = compression.compress(whole)
            sent = sent.contiguous()
            self._compressed = whole, sent, context
        self._sent = sent
        members = self._members(states, codec) if may_move else {}
        mover = mover_of(names, [sent], members, process_set)
        if mover is not None:
            self._host, tensors = sent, [sent]
            self.started = mover.start(lib.HVD_ALLREDUCE, names, tensors, tensors, [members])
            return
        self._host = on_host(sent, self._host)
        key = group_of(process_set), sent.dtype, sent.shape, states
        if self._described is None or self._described[0] != key:
            self._described = key, self._describe(self._host, states, codec)
        at = [self._host.data_ptr()]
        self.started = self._described[1].start(at, at, self._host)

    def finish(self) -> None:
        """Wait for the reduced gradients; raise the error if the allreduce failed."""
        started, self.started = self.started, None
        assert started is not None
        compressed, self._compressed = self._compressed, None
        started.finish()
        if not all(map(is_, map(_GRAD, self.params), self.views)):
            self._refuse_replaced()
        if self._host is not self._sent:
            self._sent.copy_(self._host)
        written(self.views)
        if compressed is not None:
            whole, sent, context = compressed
            with torch.no_grad():
                whole.copy_(self._reduction.compression.decompress(sent, context))

    def _refuse_replaced(self) -> None:
        """Raise if the script has set a gradient to None, or replaced it, after it was sent.

        Without this error, the other ranks would use the average, but this rank would not.
        """
        for at, (param, view) in enumerate(zip(self.params, self.views)):
            if param.grad is not view and at not in self.frozen:
                what = "set to None" if param.grad is None else "replaced"
                raise RuntimeError(
                    f"tensor '{self.name}': gradient {at} was {what} between backward and step(), "
                    "while ranks averaged it: call synchronize() before you change gradients"
                )

    def _write(self) -> None:
        """Copy gradients that lie outside the bucket into the bucket, and zeros for None.

        A copied gradient stays the same object and gets the bucket's memory, because the script may
        have a reference to the gradient.
        """
        if [view.data_ptr() for view in self.views] != self._begins:
            # the script has given views other memory, by model.half() or p.grad.data = ...
            self.views = [self._view(at) for at in range(len(self.params))]
        grads, self.frozen = [param.grad for param in self.params], []
        if self._are_usual(grads):
            stale, values, moved = self.views, grads, list(enumerate(grads))
        else:
            stale, values, moved = self._sort(grads)
        if stale:
            with torch.no_grad():  # autograd may record here (create_graph), but not this copy
                torch._foreach_copy_(stale, values)
        for at, grad in moved:
            grad.data = self.views[at]
            self.views[at] = grad

    def _are_usual(self, grads: list) -> bool:
        """Return True if all gradients are new plain tensors, and the script has kept no old one.

        Each check is one pass in C, because the loop of :meth:`_sort` takes as long as backward
        takes for the gradients of small layers.
        """
        facts = set(map(_FACTS, grads)) if set(map(type, grads)) == {torch.Tensor} else None
        return (
            facts == {(self._flat.dtype, torch.strided, False)}
            and len(set(map(id, grads))) == len(grads)
            and not any(map(eq, map(torch.Tensor.data_ptr, grads), self._begins))
            and max(map(sys.getrefcount, self.views)) <= _OWN_REFERENCES_OF_MAP
        )

    def _sort(self, grads: list) -> Tuple[list, list, list]:
        """Return three lists: views of the bucket; gradients to copy into these views; and (index,
        gradient) for each gradient that stays its parameter's ``grad``."""
        stale: List[torch.Tensor] = []
        values, moved = [], {}  # moved has each gradient once, even if two parameters share it
        for at, (param, grad) in enumerate(zip(self.params, grads)):
            if grad is self.views[at]:
                continue
            if grad is not None and not grad.is_sparse and grad.data_ptr() == self._begins[at]:
                param.grad = self.views[at]
                continue
            if sys.getrefcount(self.views[at]) > _OWN_REFERENCES:
                self._part_from(at)
            view = self.views[at]
            if grad is None:
                view.zero_()
                if param.requires_grad:
                    param.grad = view
                else:
                    self.frozen.append(at)
                continue
            stale.append(view)
            values.append(grad.to_dense() if grad.is_sparse else grad)
            # after backward(create_graph=True) a gradient requires a gradient
            is_plain = type(grad) is torch.Tensor and not grad.requires_grad
            alike = is_plain and grad.dtype == view.dtype and not grad.is_sparse
            if alike and id(grad) not in moved:
                moved[id(grad)] = at, grad
            else:
                param.grad = view
        return stale, values, list(moved.values())

    def _part_from(self, at: int) -> None:
        """Move an earlier step's gradient, which the script has kept, out of the bucket."""
        kept, self.views[at] = self.views[at], self._view(at)
        kept.data = kept.clone()

    def _view(self, at: int) -> torch.Tensor:
        """Return a view of the part of the bucket that belongs to one gradient.

        The view has the strides that autograd expects.
        """
        param, start = self.params[at], self._starts[at]
        part = self._flat[start : start + param.numel()]
        packed = is_packed(param)
        return part.as_strided(param.shape, param.stride()) if packed else part.view(param.shape)

    def _codec(self) -> Optional[Codec]:
        return codec_of(self._reduction.compression, self._flat.dtype == torch.float32)

    def left_out(self) -> Iterator[Tuple[torch.Tensor, torch.Tensor]]:
        """Yield each parameter and a view of what compression has left out of its gradient."""
        codec = self._codec()
        if codec is None or not codec.has_residual:
            return
        if self._residual is None:
            self._residual = torch.zeros_like(self._flat, device="cpu")
        for param, start in zip(self.params, self._starts):
            yield param, self._residual[start : start + param.numel()]

    def _members(self, states: int, codec: Optional[Codec]) -> dict:
        coded = {} if codec is None else {"codec": codec.kind, "parameter": codec.parameter}
        order = {"priority": self._priority, "states": states}
        return {**self._reduction.members(), **order, **coded}

    def _describe(self, sent: torch.Tensor, states: int, codec: Optional[Codec]) -> Repeated:
        members = self._members(states, codec)
        if codec is not None and codec.has_residual:
            if self._residual is None:
                self._residual = torch.zeros_like(sent)
            members["residual"] = ffi.cast("float *", self._residual.data_ptr())
        return Repeated(lib.HVD_ALLREDUCE, [self.name], [memory_of(sent)], [members])


def can_share(reduction: Reduction) -> bool:
    """Return True if buckets should be in memory that the ranks of a host share."""
    process_set = reduction.process_set
    alone = process_set is not global_process_set or process_set.size() == 1
    return not alone and reduction.compression is NoneCompressor


def is_elementwise(reduction: Reduction) -> bool:
    """Return True if reducing a bucket gives the same as reducing each gradient separately.

    This is false for Adasum, and unknown for compressors other than hvdlite's own.
    """
    compression = reduction.compression
    own = isinstance(compression, Codec) or hasattr(compression, "codec")
    return reduction.op != lib.HVD_ADASUM and (own or compression is NoneCompressor)


def _zeros(count: int, like: torch.Tensor, memory: Optional[SharedMemory]) -> torch.Tensor:
    room = memory.take(count * like.element_size()) if memory and like.is_cpu else None
    if room is None or not count:
        return torch.zeros(count, dtype=like.dtype, device=like.device)
    return torch.from_numpy(room).view(like.dtype)


class _Alive(ModuleState):
    def begin(self) -> None:
        self.gradients: WeakSet = WeakSet()  # every Gradients, until it is freed


alive = _Alive()


def if_alive(method: Callable, gradients: ref, *more) -> None:
    """Call a hook's ``method``, unless an object that the method needs has been freed.

    A garbage collection during backward may free an optimizer before autograd calls its hook.

    :param gradients: a weak reference to the object of the method.
    :param more: the method's arguments: weak references to objects, then the parameter itself.
    """
    found = [each() for each in (gradients, *more[:-1])]
    if None not in found:
        method(*found, more[-1])
