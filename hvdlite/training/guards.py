"""Guards report ranks whose parameters differ from the other ranks' parameters or are not finite.

Each framework has a subclass, which returns the parameters as arrays. A script makes a guard, or
sets HVDLITE_GUARD_STEPS; otherwise nothing is checked.
"""

import os
import zlib
from typing import Iterable, List, NamedTuple, Optional

import numpy as np

from hvdlite.core.agreement import meet
from hvdlite.core.collectives import gather_numbers
from hvdlite.core.names import owner_name
from hvdlite.core.native import MISMATCH, HvdliteError, HvdliteValueError
from hvdlite.core.process_set import ProcessSet, global_process_set


class Guarded(NamedTuple):
    """A parameter that a guard checks."""

    name: str
    value: np.ndarray
    gradient: Optional[np.ndarray]  # this rank's gradient before averaging, or None


class Guard:
    """Every few steps, compares the parameters of all ranks and searches for NaN and infinity.

    A gradient is checked before it is averaged, so the error names the rank that made the first
    NaN. Ranks compare the CRC-32 of values. In the subclass of a framework, ``_guarded()`` returns
    the parameters, in the same order on every rank.
    """

    def __init__(
        self, params, every: int = 100, process_set: ProcessSet = global_process_set
    ) -> None:
        self._params = list(params.values() if hasattr(params, "values") else params)
        if not isinstance(every, int) or every < 1:
            raise HvdliteValueError(f"every is {every!r}: expected a whole number of at least 1")
        self._every, self._set, self._name = every, process_set, owner_name("guard", process_set)
        self._met = -1
        self._steps = 0
        self._equal_at: Optional[int] = None  # the step of the last check that found no fault

    def _guarded(self) -> Iterable[Guarded]:
        raise NotImplementedError

    def step(self) -> None:
        """Count a step; check the parameters before the first step and then every N steps.

        :raises hvdlite.HvdliteError: on all ranks, with the same text: a parameter differs between
            ranks, or a parameter or gradient has NaN or infinity. The text names the first faulty
            parameter, the ranks and the step.
        """
        self._steps += 1
        if (self._steps - 1) % self._every or not self._set.included():
            return
        self._met = meet(self._name, self._met, self._set)
        guarded = list(self._guarded())
        seen = [number for each in guarded for number in _seen_of(each)]
        everyone = gather_numbers(seen, f"{self._name}.guard", self._set)
        shape = (self._set.size(), len(guarded), _FACTS)
        faults = list(self._faults([each.name for each in guarded], everyone.reshape(shape)))
        if faults:
            more = f"; and {len(faults) - 1} more" if len(faults) > 1 else ""
            text = f"before step {self._steps}: {faults[0]}{more}"
            raise HvdliteError(text, kind=MISMATCH)
        self._equal_at = self._steps

    def _faults(self, names: List[str], everyone: np.ndarray) -> Iterable[str]:
        """Yield error texts, first about gradients: NaNs in gradients cause NaNs in parameters."""
        ranks = self._set.ranks
        for what, fact in (("the gradient of ", _GRADIENT), ("", _VALUE)):
            for i, name in enumerate(names):
                bad = everyone[:, i, fact]
                if bad.any():
                    on = (f"rank {ranks[r]} ({bad[r]} values)" for r in np.flatnonzero(bad))
                    yield f"{what}parameter '{name}' has NaN or infinite values on {', '.join(on)}"
        for i, name in enumerate(names):
            digests = everyone[:, i, _DIGEST]
            if (digests != digests[0]).any():
                yield f"parameter '{name}' differs between ranks: {self._differing(digests)}"

    def _differing(self, digests: np.ndarray) -> str:
        values, counts = np.unique(digests, return_counts=True)
        most = values[counts.argmax()]
        others = [str(self._set.ranks[r]) for r in np.flatnonzero(digests != most)]
        at = self._equal_at
        last = "it was never equal" if at is None else f"equal before step {at}"
        if counts.max() == 1:
            return f"no two ranks have the same value; {last}"
        which, verb = ("ranks", "differ") if others[1:] else ("rank", "differs")
        return f"{which} {', '.join(others)} {verb} from the other {counts.max()}; {last}"


_FACTS = 3
_DIGEST, _VALUE, _GRADIENT = range(_FACTS)


def _seen_of(one: Guarded) -> List[int]:
    value = np.ascontiguousarray(one.value)
    gradient = 0 if one.gradient is None else _not_finite(one.gradient)
    return [zlib.crc32(value.reshape(-1).view(np.uint8).data), _not_finite(value), gradient]


def _not_finite(array: np.ndarray) -> int:
    """Return the number of NaN and infinite values; fast if there are none."""
    if array.size == 0 or array.dtype.kind in "iub":
        return 0
    if np.isfinite(array.min()) and np.isfinite(array.max()):
        return 0
    return int(array.size - np.count_nonzero(np.isfinite(array)))


def steps_from_environment() -> int:
    """Return HVDLITE_GUARD_STEPS, the number of steps between two checks; 0 means no guard."""
    text = os.environ.get("HVDLITE_GUARD_STEPS", "") or "0"
    if not text.isdecimal():
        raise HvdliteValueError(
            f"HVDLITE_GUARD_STEPS is '{text}': expected a whole number of at least 0"
        )
    return int(text)
