"""Stripes: how a large weight is dealt to the hosts of a job, so that each has some of the states.

Host (first + n) % hosts gets stripe n, of ``HVD_STRIPE`` bytes; its stripes lie one after the other
(``csrc/collectives/dealt.c``).
"""

from typing import List, NamedTuple, Sequence

import mxnet as mx
import numpy as np

from hvdlite.core.native import lib

_STRIPE = lib.HVD_STRIPE // 4  # values of float32


class Stripes(NamedTuple):
    """What this host gets of a flat weight.

    :ivar size: the weight's values.
    :ivar hosts: of the job; ``host``: this one's number.
    :ivar first: the host that gets the first stripe.
    """

    size: int
    hosts: int
    host: int
    first: int

    def cut(self, whole):
        """Return an NDArray of the values that this host has; of one value where it has none."""
        flat = whole.asnumpy().reshape(-1)
        own = [flat[part] for part in self._of(self.host)]
        # MXNet has no arrays without values.
        return mx.nd.array(np.concatenate(own) if own else np.zeros(1), dtype=flat.dtype)

    def own(self, cut) -> np.ndarray:
        """Return the values that :meth:`cut` has given, without the one that stands for none."""
        return cut.asnumpy()[: self._count(self.host)]

    def join(self, parts: np.ndarray, shape: Sequence[int]):
        """Return the whole from the values of all hosts, one host after the other."""
        whole, at = np.empty(self.size, parts.dtype), 0
        for host in range(self.hosts):
            for part in self._of(host):
                count = part.stop - part.start
                whole[part] = parts[at : at + count]
                at += count
        return mx.nd.array(whole.reshape(shape), dtype=whole.dtype)

    def _of(self, host: int) -> List[slice]:
        start = (host - self.first) % self.hosts * _STRIPE
        begins = range(start, self.size, self.hosts * _STRIPE)
        return [slice(begin, min(begin + _STRIPE, self.size)) for begin in begins]

    def _count(self, host: int) -> int:
        return sum(part.stop - part.start for part in self._of(host))


def can_deal(weight) -> bool:
    """Tell whether a weight is large enough, and of the dtype that the C library updates."""
    return weight.dtype == np.float32 and weight.size >= _STRIPE
