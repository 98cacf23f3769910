"""Which rows of an array go to which rank."""

from typing import Sequence

import numpy as np

from hvdlite.collectives import gather_bytes, gather_numbers
from hvdlite.process_sets.process_set import ProcessSet


def rows_of(shape: Sequence[int]) -> int:
    """Return the rows of an array in an allgather; a 0-d array counts as one."""
    return shape[0] if shape else 1


def part_shape(shape: Sequence[int], process_set: ProcessSet) -> tuple:
    """Return the shape of this rank's part in a reducescatter, which refuses 0-d arrays itself."""
    if not shape:
        return ()
    each, longer = divmod(shape[0], process_set.size())
    return (each + (process_set.rank() < longer), *shape[1:])


def split_rows(shape: Sequence[int], splits, name: str, process_set: ProcessSet) -> np.ndarray:
    """Return how many of its rows this rank sends to each other one in an alltoall.

    :param splits: what the user gave, None for equally many to each.
    :raises ValueError: they are not whole numbers, not one a rank, or too many.
    """
    if not shape:
        raise ValueError(f"tensor '{name}' is 0-d: an alltoall needs rows to deal out")
    rows, size = shape[0], process_set.size()
    if splits is None:
        if rows % size:
            raise ValueError(
                f"tensor '{name}': {rows} rows can't be dealt out evenly to {size} ranks: expected "
                f"a multiple of {size}, or splits"
            )
        return np.full(size, rows // size, np.int64)
    given = np.asarray(splits.asnumpy() if hasattr(splits, "asnumpy") else splits)
    if given.shape != (size,):
        raise ValueError(
            f"tensor '{name}': splits are of shape {given.shape}: expected {size} numbers, one for "
            "each rank"
        )
    whole = given.astype(np.int64)
    if (whole != given).any() or (whole < 0).any() or whole.sum() > rows:
        raise ValueError(
            f"tensor '{name}': splits {given.tolist()} add up to {given.sum()}: expected whole "
            f"numbers of at most {rows}, the first dimension, in all"
        )
    return whole


def all_splits(shape: Sequence[int], splits, name: str, process_set: ProcessSet) -> np.ndarray:
    """Return how many rows go from each rank (a row) to each other (a column). Collective.

    :raises ValueError: on every rank, the same, when those of any rank can't be right.
    """
    try:
        own, wrong = split_rows(shape, splits, name, process_set).tolist(), ""
    except ValueError as error:
        own, wrong = [-1] * process_set.size(), str(error)
    matrix = gather_numbers(own, name, process_set)
    if (matrix < 0).any():
        texts = gather_bytes(wrong.encode(), f"{name}.splits", process_set)
        blamed = [(r, text.decode()) for r, text in zip(process_set.ranks, texts) if text]
        raise ValueError("; ".join(f"rank {r}: {text}" for r, text in blamed))
    return matrix
