"""Checks before each update that all ranks have nearly the same weights and optimizer states.

If only one rank restores a checkpoint, this rank applies the same gradients to other weights.
Bits may differ even without a fault, because CPUs round differently. So ranks compare sums of
sampled values with a tolerance, and whole numbers, such as a step count, exactly.
"""

import zlib
from typing import List, Sequence

import numpy as np

from hvdlite.core.handles import Handle
from hvdlite.core.names import meeting_name
from hvdlite.core.process_set import ProcessSet
from hvdlite.training.step_check import RANGE, are_equal, refuse, sum_over_ranks

# Largest difference of two ranks' sums, relative to the norm of the samples. Chosen, not measured:
# more than the CPUs' rounding, less than what another checkpoint changes.
_TOLERANCE = 1e-3


class StateCheck:
    """Compares samples of an optimizer's weights and states between ranks.

    :param owner: the optimizer's name; ``remedy``: what the error tells the user to do.
    """

    def __init__(self, owner: str, process_set: ProcessSet, remedy: str) -> None:
        self._set, self._remedy, self._name = process_set, remedy, f"{meeting_name(owner)}, states"
        self._is_first = True

    def start(self, kinds: Sequence[str], samples: Sequence[np.ndarray], skips: bool) -> Handle:
        """Send a sum of each kind of state; return a handle that waits and compares the sums.

        :param kinds: what each sample belongs to, such as "weights" or "momentum"; each kind has a
            sum, because momentum may be much smaller than weights.
        :param skips: True: do not compare the first step, because states may be broadcast after it.
        """
        by_kind = list(dict.fromkeys(kinds))
        facts = [_facts([s for k, s in zip(kinds, samples) if k == kind]) for kind in by_kind]
        sums, norms = np.array(facts, np.float64).T
        crc = zlib.crc32("\n".join(by_kind).encode()) % RANGE
        first, self._is_first = self._is_first and skips, False
        with np.errstate(all="ignore"):  # weights may be infinite
            mine = np.array([*sums, *sums**2, *norms, crc, crc**2, first, 1], np.float64)

        def compare(totals) -> List[np.int32]:
            total, squares, norms = totals[:-4].reshape(3, -1)
            differ = differing(total, squares, norms, totals[-1])
            wrong = [f"{by_kind[i]} with digest {sums[i]:.9g}" for i in np.flatnonzero(differ)]
            same_kinds = are_equal(totals[-4], totals[-3], totals[-1])
            if not same_kinds or (wrong and not totals[-2] > 0):
                lines = wrong if same_kinds else by_kind
                what = "the optimizer's states"
                refuse(what, lines, lines, self._set, self._remedy, totals[-1])
            return [np.int32(0)]

        return sum_over_ranks(self._name, mine, self._set).then(compare)


def differing(sums: np.ndarray, squares: np.ndarray, norms: np.ndarray, ranks: float) -> np.ndarray:
    """Return for each kind whether two of the ranks' values differ by more than the tolerance.

    :param sums: for each kind, the sum of the ranks' values; ``squares``: of the values' squares.
    :param norms: for each kind, the sum of the ranks' norms; the tolerance is relative to a norm.
    :param ranks: the number of ranks that have not joined.
    """
    with np.errstate(all="ignore"):  # weights may be infinite
        variance = squares / ranks - (sums / ranks) ** 2
        # if values of two ranks differ by d, the variance is at least d**2 / (2 * ranks)
        return 2 * ranks * variance > _TOLERANCE**2 * norms / ranks


def _facts(samples: Sequence[np.ndarray]):
    """Return the sum of the values, weighted by position, and the sum of their squares."""
    flat = np.concatenate([np.ravel(sample) for sample in samples])
    if flat.dtype.kind in "iu":
        # with this norm, sums that differ by 1 differ by twice the tolerance
        return int(flat.sum()) % RANGE, (0.5 / _TOLERANCE) ** 2
    flat = flat.astype(np.float64)
    return flat @ np.cos(np.arange(flat.size)), flat @ flat
