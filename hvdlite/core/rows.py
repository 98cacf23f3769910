"""Which rows of an array go to which rank, and the row counts that ranks exchange first."""

import zlib
from typing import Callable, NamedTuple, Sequence, Tuple

import numpy as np

from hvdlite.core.collectives import Started, gather_bytes, start_gathering
from hvdlite.core.handles import Handle
from hvdlite.core.native import HvdliteValueError
from hvdlite.core.process_set import ProcessSet
from hvdlite.core.stages import staged


def rows_of(shape: Sequence[int]) -> int:
    """Return the rows of an array in an allgather; a 0-d array counts as one."""
    return shape[0] if shape else 1


def part_shape(shape: Sequence[int], process_set: ProcessSet) -> tuple:
    """Return the shape of this rank's part in a reducescatter; the call itself refuses 0-d."""
    if not shape:
        return ()
    each, longer = divmod(shape[0], process_set.size())
    return (each + (process_set.rank() < longer), *shape[1:])


def split_rows(shape: Sequence[int], splits, name: str, process_set: ProcessSet) -> np.ndarray:
    """Return how many rows this rank sends to each rank in an alltoall.

    :param splits: as the user gave them; None: equally many to each rank.
    :raises HvdliteValueError: ``splits`` are not whole numbers, not one a rank, or more than rows.
    """
    if not shape:
        raise HvdliteValueError(f"tensor '{name}' is 0-d: an alltoall needs rows to deal out")
    rows, size = shape[0], process_set.size()
    if splits is None:
        if rows % size:
            raise HvdliteValueError(
                f"tensor '{name}': {rows} rows can't be dealt out evenly to {size} ranks: expected "
                f"a multiple of {size}, or splits"
            )
        return np.full(size, rows // size, np.int64)
    try:
        given = np.asarray(splits.asnumpy() if hasattr(splits, "asnumpy") else splits)
    except ValueError as error:  # lists of different lengths
        raise HvdliteValueError(f"tensor '{name}': splits are {splits!r}: {error}") from None
    if given.shape != (size,):
        raise HvdliteValueError(
            f"tensor '{name}': splits are of shape {given.shape}: expected {size} numbers, one for "
            "each rank"
        )
    if hasattr(splits, "asnumpy") and given.dtype.kind == "f":  # as in Horovod: mostly a mistake
        raise HvdliteValueError(
            f"tensor '{name}': splits are an NDArray of {given.dtype}: expected whole numbers, as "
            "mx.nd.array(splits, dtype='int32') has"
        )
    numbers = given.tolist()  # Python's integers do not overflow
    total = sum(numbers) if all(map(_is_count, numbers)) else None
    if total is None or total > rows:
        added = "" if total is None else f" add up to {total}"
        raise HvdliteValueError(
            f"tensor '{name}': splits {numbers}{added}: expected whole numbers of at most {rows}, "
            "the first dimension, in all"
        )
    return np.array(numbers, np.int64)


def _is_count(number) -> bool:
    is_number = isinstance(number, (int, float)) and not isinstance(number, bool)
    return is_number and number >= 0 and number % 1 == 0


def fingerprint(*facts) -> int:
    """Return a number that differs between ranks whose facts (dtype, columns) differ.

    The collective that follows says what the ranks disagree on, but only when it is waited for.
    """
    return zlib.crc32(repr(facts).encode())


def alike(gathered: np.ndarray) -> bool:
    """Tell whether all rows of ``gathered``, one a rank, are equal."""
    return bool((gathered == gathered[0]).all())


def all_splits(
    shape: Sequence[int], splits, name: str, process_set: ProcessSet, facts: int = 0
) -> Tuple[np.ndarray, bool]:
    """Return the matrix of row counts: ``matrix[i, j]`` rows go from rank i to j. Collective.

    :param facts: a fingerprint; the second value tells whether it is equal on all ranks.
    :raises HvdliteValueError: on every rank, with one text, if some rank's splits are wrong.
    """
    started, counts = start_splits(shape, splits, name, process_set, facts)
    started.finish()
    return counts.matrix(), alike(counts.gathered[:, -1])


class Counts(NamedTuple):
    """The row counts of an alltoall, complete when their exchange has ended."""

    gathered: np.ndarray  # of each rank what it sends to each, and its facts
    wrong: str  # what is wrong with this rank's splits
    name: str
    process_set: ProcessSet

    def are_wrong(self) -> bool:
        """Tell whether some rank's splits are; then :meth:`matrix` is a collective, and raises."""
        return bool((self.gathered[:, :-1] < 0).any())

    def matrix(self) -> np.ndarray:
        """Return what :func:`all_splits` does."""
        if self.are_wrong():
            texts = gather_bytes(self.wrong.encode(), f"{self.name}.splits", self.process_set)
            blamed = [(r, text.decode()) for r, text in zip(self.process_set.ranks, texts) if text]
            raise HvdliteValueError("; ".join(f"rank {r}: {text}" for r, text in blamed))
        return np.ascontiguousarray(self.gathered[:, :-1])


def start_splits(
    shape: Sequence[int], splits, name: str, process_set: ProcessSet, facts: int = 0
) -> Tuple[Started, Counts]:
    """Start what :func:`all_splits` does."""
    try:
        own, wrong = split_rows(shape, splits, name, process_set).tolist(), ""
    except HvdliteValueError as error:
        own, wrong = [-1] * process_set.size(), str(error)
    started, gathered = start_gathering([*own, facts], name, process_set)
    return started, Counts(gathered, wrong, name, process_set)


def staged_alltoall(
    shape: Sequence[int], splits, name: str, process_set: ProcessSet,
    begin: Callable[[np.ndarray], Handle],
) -> Handle:  # fmt: skip
    """Return the handle of an alltoall, whose row counts are under way when this returns.

    :param begin: starts it, by the matrix of row counts.
    """
    started, counts = start_splits(shape, splits, name, process_set)

    def second() -> Handle:
        if counts.are_wrong():  # told to the others in the call that waits: each rank makes one
            return Handle(lambda: True, counts.matrix)
        return begin(counts.matrix())

    return staged(started, second)
