"""Finds ranks that have loaded other optimizer states, or that use another batch size."""

from typing import Any, Collection, Optional, Set

import numpy as np

from hvdlite.core import topology
from hvdlite.core.names import joins
from hvdlite.core.native import lib
from hvdlite.core.process_set import ProcessSet


def _divisor_number(rescale: float) -> int:
    """Return the number for ``hvd_tensor.states`` that contains 1 / rescale as a float32."""
    bits = int(np.float32(1 / rescale if rescale else np.inf).view(np.int32))
    return lib.HVD_DIVISORS | (bits & 0x7FFFFFFF) >> 1


class Loads:
    """Makes a step fail unless all ranks have loaded equal states, and use the same batch size.

    A rank sends a number with its gradients, but only in the step after a change. So a change on
    some ranks only is an error, and other steps have no cost.
    """

    states: int
    # The optimizer's rescale_grad in this step; it contains the batch size and the loss scale.
    # None: unknown, so that ranks do not compare it.
    rescale: Optional[float] = None
    _sent: Set[Any]  # the gradients whose messages have carried the number in this step
    _last_rescale: tuple = ()  # the last value sent, the job, and the calls of join() before

    def loaded(self, digest: int) -> None:
        """Set the digest of the states that this rank has loaded; 0: nothing to compare."""
        self.states, self._sent = digest, set()

    def states_of(self, gradients: Collection, process_set: ProcessSet) -> int:
        """Return the number to send with these gradients; 0 if an earlier step has sent it."""
        if self.states and not self._sent.isdisjoint(gradients):
            self.loaded(0)
        has_loaded = 0 < self.states < lib.HVD_DIVISORS
        if gradients and self.rescale is not None and not has_loaded:
            # During join() a rank misses the changes of other ranks: after join() all send again.
            now = (self.rescale, topology.job_number(), joins(process_set))
            if now != self._last_rescale:
                self.loaded(_divisor_number(self.rescale))
                self._last_rescale = now
        self._sent.update(gradients if self.states else ())
        return self.states
