"""Checks at each step, beside the gradients, that ranks take the same step of the same optimizer.

Tensors are matched by name, and an optimizer's name counts the optimizers of a process. If one rank
alone loaded a saved model or other states, it would wait for another optimizer's gradients, or
apply the same gradients differently.
"""

import contextlib
import zlib
from typing import Callable, Dict

import numpy as np

from hvdlite import numpy as collectives
from hvdlite.core.handles import Handle
from hvdlite.core.module_state import ModuleState
from hvdlite.core.names import meeting_name
from hvdlite.core.objects import agree
from hvdlite.core.process_set import ProcessSet
from hvdlite.core.reduce_ops import Average

_RANGE = 2**20  # float64 adds up the squares of 8,000 such numbers exactly
_REMEDY = (
    "Load a saved model or states on every rank, before the first step; or broadcast what one rank "
    "has loaded: hvd.callbacks.BroadcastGlobalVariablesCallback(0), or "
    "hvd.broadcast_variables(optimizer.variables, 0)"
)


class _Started(ModuleState):
    def begin(self) -> None:
        self.handles: Dict[str, Handle] = {}  # the last handle of each name


_started = _Started()


class StepCheck:
    """The values that must be equal on all ranks in a step.

    :param owner: the optimizer's name; ``settings``: how it adds up and applies gradients.
    """

    def __init__(self, owner: str, settings: str, process_set: ProcessSet) -> None:
        self._optimizer, self._set = f"{owner} ({settings})", process_set
        self._is_first = True  # not compared in the first step, after which states may be broadcast
        # may recur, because optimizers of one thread step one after another
        self._name = meeting_name(owner)

    def start(self, iteration: int) -> Callable[[], None]:
        """Send the values; return a function that waits for the other ranks and compares."""
        numbers = [zlib.crc32(self._optimizer.encode()) % _RANGE, iteration % _RANGE]
        first, self._is_first = self._is_first, False
        mine = np.array([*numbers, *(each**2 for each in numbers), first], np.float64)
        name = f"{self._name}, step"
        if name in _started.handles:  # the name is that of another optimizer in the same graph
            with contextlib.suppress(Exception):  # the wait for that handle raises its error
                _started.handles.pop(name).synchronize()
        handle = collectives.allreduce_async(mine, name, Average, process_set=self._set)
        _started.handles[name] = handle

        def finish() -> None:
            means = handle.synchronize()
            any_first = means[4] > 0
            if means[0] ** 2 == means[2] and (any_first or means[1] ** 2 == means[3]):
                return
            lines = [self._optimizer, *([] if any_first else [f"iteration {iteration}"])]
            agree("the optimizer's step", lines, process_set=self._set, remedy=_REMEDY)

        return finish
