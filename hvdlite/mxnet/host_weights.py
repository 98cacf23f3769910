"""Keeps one copy of weights and optimizer states per host, in memory that its ranks share.

The states of large weights are divided among the hosts in stripes of ``HVD_STRIPE`` bytes: host
(first + n) % hosts gets stripe n. A host stores its stripes without gaps
(``csrc/collectives/dealt.c``).
"""

import mmap
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

import mxnet as mx
import numpy as np

from hvdlite.core import shared_memory, topology
from hvdlite.core.native import lib
from hvdlite.mxnet.collectives import is_shareable, nbytes_of

_STRIPE = lib.HVD_STRIPE // 4  # number of float32 values in a stripe


class Stripes(NamedTuple):
    """The stripes of a flat weight that belong to this host.

    :ivar size: the number of the weight's values.
    :ivar hosts: the number of hosts; ``host``: the number of this host.
    :ivar first: the number of the host that gets the first stripe.
    """

    size: int
    hosts: int
    host: int
    first: int

    def cut(self, whole):
        """Return an NDArray of this host's values; a host without values gets an array of one 0."""
        flat = whole.asnumpy().reshape(-1)
        own = [flat[part] for part in self._stripes(self.host)]
        # a zero, because MXNet 1 has no empty arrays by default
        return mx.nd.array(np.concatenate(own) if own else np.zeros(1), dtype=flat.dtype)

    def own(self, cut) -> np.ndarray:
        """Return this host's values, possibly none, from the result of :meth:`cut`."""
        count = sum(part.stop - part.start for part in self._stripes(self.host))
        return cut.asnumpy()[:count]

    def join(self, parts: np.ndarray, shape: Sequence[int]):
        """Return the whole weight in this shape.

        :param parts: the values of host 0's stripes, followed by the values of host 1's, ...
        """
        whole, at = np.empty(self.size, parts.dtype), 0
        for host in range(self.hosts):
            for part in self._stripes(host):
                count = part.stop - part.start
                whole[part] = parts[at : at + count]
                at += count
        return mx.nd.array(whole.reshape(shape), dtype=whole.dtype)

    def _stripes(self, host: int) -> List[slice]:
        start = (host - self.first) % self.hosts * _STRIPE
        begins = range(start, self.size, self.hosts * _STRIPE)
        return [slice(begin, min(begin + _STRIPE, self.size)) for begin in begins]


_LINE = 64  # bytes of a cache line, and of the widest vector register


class HostWeight(NamedTuple):
    """The arrays of a parameter whose weight exists once on the host."""

    weight: Any  # the parameter's NDArray; its memory is this rank's view of the host's memory
    shared: Any  # an NDArray in the mapping where all ranks of the host see each other's writes
    states: Any  # NDArrays in the host's memory, in the structure of the optimizer's states
    arrays: List[np.ndarray]  # NumPy arrays of the memory of ``shared`` and the states

    handle: Any  # MXNet's handle of ``weight``; another handle means that the weight was replaced
    stripes: Optional[Stripes]  # the stripes whose states this host has; None: all stripes

    def is_of(self, weight) -> bool:
        """Return True if ``weight`` is the parameter's NDArray and was not replaced."""
        return self.weight is weight and self.handle == weight.handle.value


def can_move(param) -> bool:
    """Return True if ranks of a host can share one copy of the parameter's weight."""
    if param.grad_req == "null" or not param._data or len(param._data) != 1:
        return False
    return param._grad[0].stype == "default" and is_shareable(param._data[0])


def arrays_of(states) -> list:
    """Return a flat list of the NDArrays in one parameter's optimizer states."""
    if isinstance(states, mx.nd.NDArray):
        return [states]
    return [a for each in states for a in arrays_of(each)] if _is_list(states) else []


def with_arrays(states, arrays: List) -> Any:
    """Return the states with NDArrays from ``arrays`` in place of their own; empty this list."""
    if isinstance(states, mx.nd.NDArray):
        return arrays.pop(0)
    return type(states)(with_arrays(e, arrays) for e in states) if _is_list(states) else states


def _is_list(states) -> bool:
    return isinstance(states, (list, tuple))


class HostWeights:
    """Moves weights and states into memory that the ranks of the host share.

    :param states: called with an index, a weight, and the :class:`Stripes` of the weight on this
        host (None: the whole weight); returns the optimizer's states for them.
    """

    def __init__(self, states: Callable) -> None:
        self._states_of = states
        self.memory: Optional[shared_memory.HostMemory] = None
        self.by_index: Dict[int, HostWeight] = {}

    def view(self) -> Any:
        """Return the ``hvd_memory *`` in whose view the weights lie."""
        assert self.memory is not None
        return self.memory.handle

    def move(self, params: Dict[int, Any], owner: str, deals: bool) -> None:
        """Move the weights, with the values of each host's lowest rank. Collective.

        If the ranks of some host can't share memory, no weight moves on any host.

        :param params: parameters for which :func:`can_move` is true, in one order on all ranks.
        :param deals: whether to divide the states of large weights among the hosts.
        """
        pieces, host = _Layout(), shared_memory.own_host()
        plans = []
        for label, (i, param) in enumerate(params.items()):
            weight, stripes = _classic(param._data[0]), None
            is_large = weight.dtype == np.float32 and weight.size >= _STRIPE
            if deals and host.hosts > 1 and is_large:
                stripes = Stripes(weight.size, host.hosts, host.number, label % host.hosts)
            states = self._states_of(i, weight, stripes)
            offsets = [pieces.add(weight, mmap.PAGESIZE)]
            offsets += [pieces.add(array, _LINE) for array in arrays_of(states)]
            plans.append((i, param, offsets, states, stripes))
        if plans:
            self.memory = shared_memory.host_memory(pieces.end, pieces.touch, pieces.fill, owner)
        if self.memory:
            for index, *plan in plans:
                self.by_index[index] = self._move(*plan)

    def leave(self, params: Dict[int, Any]) -> None:
        """Move the weights to private memory of this rank. Not collective."""
        for index, host_weight in self.by_index.items():
            if host_weight.is_of(params[index]._data[0]):
                _replace_weight(params[index], _classic(host_weight.weight).copy())
        self.memory, self.by_index = None, {}

    def _move(
        self, param, offsets: Sequence[int], states, stripes: Optional[Stripes]
    ) -> HostWeight:
        assert self.memory is not None
        old = [_classic(param._data[0]), *arrays_of(states)]
        shared = [_view_at(self.memory.shared, at, like) for at, like in zip(offsets, old)]
        weight, *own = map(_as_mxnet, shared)
        view = _as_mxnet(_view_at(self.memory.view, offsets[0], old[0]))
        _replace_weight(param, view)
        states = with_arrays(states, own)
        data = param._data[0]
        return HostWeight(data, weight, states, shared, data.handle.value, stripes)


class _Layout:
    """Assigns offsets in the host's memory. A write to a view makes a page private to the rank, so
    each weight has its own pages."""

    def __init__(self) -> None:
        self.end = 0
        self._pieces: List[tuple] = []

    def add(self, array, alignment: int) -> int:
        start = -(-self.end // alignment) * alignment
        self.end = -(-(start + nbytes_of(array)) // alignment) * alignment
        self._pieces.append((start, array))
        return start

    def touch(self, memory: np.ndarray) -> None:
        """Write zeros to this rank's part of each array, so that the part is on its NUMA node."""
        rank, size = topology.local_rank(), topology.local_size()
        for start, array in self._pieces:
            begin, end = (start + nbytes_of(array) * part // size for part in (rank, rank + 1))
            memory[begin : end : mmap.PAGESIZE] = 0

    def fill(self, memory: np.ndarray) -> None:
        for start, array in self._pieces:
            _view_at(memory, start, array)[...] = array.asnumpy()


def _view_at(memory: np.ndarray, start: int, like) -> np.ndarray:
    dtype = np.dtype(like.dtype)
    return memory[start : start + like.size * dtype.itemsize].view(dtype).reshape(like.shape)


def _as_mxnet(array: np.ndarray):
    # pass a view, because from_numpy makes its argument read-only
    return mx.nd.from_numpy(array.view(), zero_copy=True)


def _classic(array):
    return array.as_nd_ndarray()


def _replace_weight(param, new) -> None:
    """Replace the memory of the parameter's NDArray. The NDArray object remains the same."""
    data, fresh = param._data[0], param._data[0]._fresh_grad
    data.handle, new.handle = new.handle, data.handle
    mx.autograd.mark_variables([data], param._grad, param.grad_req)
    data._fresh_grad = fresh
