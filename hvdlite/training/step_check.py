"""Checks before each step's gradients that all ranks do the same step of the same optimizer.

Ranks match tensors by name, and an optimizer's name contains a count of this process's optimizers.
Without the check, ranks wait forever if only one rank has loaded a saved model, because this rank's
names differ. If only one rank has loaded states, it applies the same gradients in another way. A
gradient is named by the number of its variable, so ranks with different variables average wrong
pairs of gradients.
"""

import contextlib
import functools
import re
import zlib
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np

from hvdlite import numpy as collectives
from hvdlite.core.agreement import agree
from hvdlite.core.handles import Handle
from hvdlite.core.module_state import ModuleState
from hvdlite.core.names import meeting_name
from hvdlite.core.native import MISMATCH, HvdliteError
from hvdlite.core.process_set import ProcessSet
from hvdlite.core.reduce_ops import Sum

RANGE = 2**20  # float64 adds up the squares of 8,000 such numbers exactly
_NUMBER = r"_(\d+)(?=_|$)"
SAME_VARIABLES = (
    "Freeze the same variables on every rank. Make the same layers in the same order on every "
    "rank, or give them names; only differences between the numbers in names count"
)
_REMEDY = (
    "Load a saved model or states on every rank, before the first step; or broadcast what one rank "
    "has loaded: hvd.callbacks.BroadcastGlobalVariablesCallback(0), or "
    f"hvd.broadcast_variables(optimizer.variables, 0). {SAME_VARIABLES}"
)


class StepCheck:
    """Compares an optimizer's name, settings, variables and step number between ranks.

    :param owner: the optimizer's name; ``settings``: how it adds up and applies gradients.
    :param what: what the error is about; ``remedy``: what the error tells the user to do.
    :param counted: True: the name has a count of owners, which may differ between ranks.
    """

    def __init__(
        self, owner: str, settings: str, process_set: ProcessSet,
        what: str = "the optimizer's step", remedy: str = _REMEDY, counted: bool = True,
    ) -> None:  # fmt: skip
        self._optimizer, self._set = f"{owner} ({settings})", process_set
        self._what, self._remedy = what, remedy
        self._is_first = True  # do not compare the first step: states may be broadcast after it
        # Optimizers may share this name, because the steps of one thread follow each other.
        self._name = meeting_name(owner) if counted else owner

    def start(
        self, iteration: int, labels: Sequence[int], names: Sequence[str] = (),
        sparse: Sequence[int] = (),
    ) -> Handle:  # fmt: skip
        """Send the step's number and gradients' names; return a handle that waits and compares.

        Reduce no gradient before this check: if ranks disagree, the reduction may never end.

        :param labels: the numbers of the variables that have a gradient.
        :param names: the names of all variables, by number; () if variables have no names.
        :param sparse: the numbers of variables whose gradients have rows of indices.
        """
        lines, texts = _checks.lines_of(tuple(labels), tuple(names), tuple(sparse))
        optimizer = "\n".join([self._optimizer, *lines])
        numbers = [zlib.crc32(optimizer.encode()) % RANGE, iteration % RANGE]
        first, self._is_first = self._is_first, False
        mine = np.array([*numbers, *(each**2 for each in numbers), first, 1], np.float64)

        def compare(totals) -> List[np.int32]:
            ranks, any_first = totals[5], totals[4] > 0  # the ranks that have not called join()
            same_step = any_first or are_equal(totals[1], totals[3], ranks)
            if not (same_step and are_equal(totals[0], totals[2], ranks)):
                head = [self._optimizer, *([] if any_first else [f"iteration {iteration}"])]
                full, shown = [*head, *lines], [*head, *texts]
                refuse(self._what, full, shown, self._set, self._remedy, ranks)
            return [np.int32(0)]

        return sum_over_ranks(f"{self._name}, step", mine, self._set).then(compare)


def are_equal(total: float, squares: float, ranks: float) -> bool:
    """Return True if ``ranks`` whole numbers with this total and sum of squares are all equal."""
    # in whole numbers, because averages of floats are inexact: 49 * (1 / 49) is less than 1
    return int(total) ** 2 == int(ranks) * int(squares)


def refuse(
    what: str, full: Sequence[str], shown: Sequence[str], process_set: ProcessSet, remedy: str,
    ranks: float,
) -> None:  # fmt: skip
    """Raise an error, because ranks have given different sums.

    :param full: what ``agree`` compares; ``shown``: what the error shows.
    :param ranks: the number of ranks that have not joined. A joined rank takes part in no
        ``agree``, so the error has the values of this rank only.
    """
    if ranks < process_set.size():
        own = "; ".join(shown[:3])
        text = f"{what}: ranks disagree; this rank has: {own}. {remedy}"
        raise HvdliteError(text, kind=MISMATCH)
    agree(what, full, shown, process_set=process_set, remedy=remedy)


def sum_over_ranks(name: str, numbers: np.ndarray, process_set: ProcessSet) -> Handle:
    """Start to sum the numbers over ranks, after the last call with this name has ended."""
    if name in _checks.handles:  # another optimizer in the same graph has used the name
        with contextlib.suppress(Exception):  # the other optimizer raises it when it waits
            _checks.handles.pop(name).synchronize()
    handle = collectives.allreduce_async(numbers, name, Sum, process_set=process_set)
    _checks.handles[name] = handle
    return handle


def _lines_of(
    labels: Tuple[int, ...], names: Tuple[str, ...], sparse: Tuple[int, ...]
) -> Tuple[List[str], List[str]]:
    """Return a line for each gradient, in two lists: with relative names, and with full names."""

    def lines(of_all: Sequence[str]) -> List[str]:
        found = [f"gradient of variable {i}{f' ({of_all[i]})' if names else ''}" for i in labels]
        return [f"sparse {line}" if i in sparse else line for i, line in zip(labels, found)]

    return lines(relative_names(names)), lines(names)


class _Checks(ModuleState):
    def begin(self) -> None:
        self.handles: Dict[str, Handle] = {}  # the last handle of each name
        self.lines_of = functools.lru_cache(maxsize=64)(_lines_of)


_checks = _Checks()


def relative_names(names: Sequence[str]) -> List[str]:
    """Return the names of layers and variables, with numbers counted from the first name's.

    A framework numbers the layers of a process, so a model that one rank has made twice has other
    numbers on this rank, but the same differences between numbers. The names of models are left
    out, because a model that one rank has loaded from a file lacks them in its variables' paths.

    >>> relative_names(["a/dense_7/kernel:0", "a/dense_8/kernel:0", "net_3_out/kernel"])
    ['dense+0/kernel+0', 'dense+1/kernel+0', 'net_out+0/kernel+0']
    """
    first: Dict[str, int] = {}

    def relative(part: str) -> str:
        base, number = re.sub(_NUMBER, "", part), sum(map(int, re.findall(_NUMBER, part)))
        return f"{base}+{number - first.setdefault(base, number)}"

    return ["/".join(map(relative, name.split(":")[0].split("/")[-2:])) for name in names]


def name_of_variable(variable: Any) -> str:
    """Return the name of a variable of Keras or TensorFlow."""
    return getattr(variable, "path", None) or variable.name
