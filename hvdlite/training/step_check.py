"""Checks with each step's gradients that all ranks do the same step of the same optimizer.

Ranks match tensors by name, and an optimizer's name contains a count of this process's optimizers.
If only one rank loads a saved model, the rank's names differ, and the rank would wait forever. If
only one rank loads states, the rank would apply the same gradients in another way.
"""

import contextlib
import zlib
from typing import Callable, Dict, Sequence

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
    "hvd.broadcast_variables(optimizer.variables, 0). Freeze the same variables on every rank"
)


class _Started(ModuleState):
    def begin(self) -> None:
        self.handles: Dict[str, Handle] = {}  # the last handle of each name


_started = _Started()


class StepCheck:
    """Compares an optimizer's name, settings and step number between ranks.

    :param owner: the optimizer's name; ``settings``: how it adds up and applies gradients.
    """

    def __init__(self, owner: str, settings: str, process_set: ProcessSet) -> None:
        self._optimizer, self._set = f"{owner} ({settings})", process_set
        self._is_first = True  # do not compare the first step: states may be broadcast after it
        # Optimizers may share a name, because the steps of one thread follow each other.
        self._name = meeting_name(owner)

    def start(self, iteration: int, labels: Sequence[int]) -> Callable[[], None]:
        """Send the values; return a function that waits for the other ranks and compares.

        :param labels: the numbers of the variables that have a gradient.
        """
        given = [f"gradient of variable {label}" for label in labels]
        optimizer = "\n".join([self._optimizer, *given])
        numbers = [zlib.crc32(optimizer.encode()) % _RANGE, iteration % _RANGE]
        first, self._is_first = self._is_first, False
        mine = np.array([*numbers, *(each**2 for each in numbers), first], np.float64)
        name = f"{self._name}, step"
        if name in _started.handles:  # another optimizer in the same graph has used the name
            with contextlib.suppress(Exception):  # that optimizer's finish() raises the error
                _started.handles.pop(name).synchronize()
        handle = collectives.allreduce_async(mine, name, Average, process_set=self._set)
        _started.handles[name] = handle

        def finish() -> None:
            means = handle.synchronize()
            any_first = means[4] > 0
            if means[0] ** 2 == means[2] and (any_first or means[1] ** 2 == means[3]):
                return
            lines = [self._optimizer, *([] if any_first else [f"iteration {iteration}"]), *given]
            agree("the optimizer's step", lines, process_set=self._set, remedy=_REMEDY)

        return finish
