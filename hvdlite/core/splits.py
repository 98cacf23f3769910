"""How many rows of an array a rank sends to each rank, and how many it gets."""

from typing import Sequence

import numpy as np

from hvdlite.core.arguments import refuse_mask
from hvdlite.core.native import HvdliteValueError
from hvdlite.core.process_set import ProcessSet


def rows_of(shape: Sequence[int]) -> int:
    """Return the number of rows of an array in an allgather; a 0-d array counts as one row."""
    return shape[0] if shape else 1


def bytes_of_row(array: np.ndarray) -> int:
    return int(np.prod(array.shape[1:], dtype=np.int64)) * array.itemsize


def part_shape(shape: Sequence[int], process_set: ProcessSet) -> tuple:
    """Return the shape of this rank's part of a reducescatter's result; () for a 0-d array."""
    if not shape:
        return ()
    each, longer = divmod(shape[0], process_set.size())
    return (each + (process_set.rank() < longer), *shape[1:])


def split_rows(shape: Sequence[int], splits, name: str, process_set: ProcessSet) -> np.ndarray:
    """Return how many rows this rank sends to each rank in an alltoall.

    :param splits: the user's argument; None: the same number for each rank.
    :raises HvdliteValueError: ``splits`` are not one whole number for each rank, or their sum is
        larger than the number of rows.
    """
    if not shape:
        raise HvdliteValueError(
            f"tensor '{name}' is 0-d: expected at least one dimension, because an alltoall divides "
            "the first dimension among the ranks"
        )
    rows, size = shape[0], process_set.size()
    if splits is None:
        if rows % size:
            raise HvdliteValueError(
                f"tensor '{name}': {rows} rows can't be divided evenly among {size} ranks: "
                f"expected a multiple of {size}, or splits"
            )
        return np.full(size, rows // size, np.int64)
    try:
        refuse_mask(splits)
        array = np.asarray(splits.asnumpy() if hasattr(splits, "asnumpy") else splits)
    except ValueError as error:  # splits that are lists of different lengths
        raise HvdliteValueError(f"tensor '{name}': splits are {splits!r}: {error}") from None
    if array.shape != (size,):
        raise HvdliteValueError(
            f"tensor '{name}': splits are of shape {array.shape}: expected {size} numbers, one for "
            "each rank"
        )
    # an error as in Horovod, because floats here are usually a mistake
    if hasattr(splits, "asnumpy") and array.dtype.kind == "f":
        raise HvdliteValueError(
            f"tensor '{name}': splits are an NDArray of {array.dtype}: expected whole numbers, as "
            "mx.nd.array(splits, dtype='int32') has"
        )
    numbers = array.tolist()  # Python's integers do not overflow
    total = sum(numbers) if all(map(_is_count, numbers)) else None
    if total is None or total > rows:
        added = "" if total is None else f" add up to {total}"
        raise HvdliteValueError(
            f"tensor '{name}': splits {numbers}{added}: expected whole numbers whose sum is at "
            f"most {rows}, the first dimension"
        )
    return np.array(numbers, np.int64)


def _is_count(number) -> bool:
    is_number = isinstance(number, (int, float)) and not isinstance(number, bool)
    return is_number and number >= 0 and number % 1 == 0


def split_members(shape: Sequence[int], splits, name: str, process_set: ProcessSet) -> dict:
    """Return the members of ``hvd_tensor`` for an alltoall with the user's splits.

    Wrong splits make the alltoall fail on every rank with the same text.
    """
    try:
        rows = split_rows(shape, splits, name, process_set)
        return {} if splits is None else {"splits": rows}
    except HvdliteValueError as error:
        return {"failed": str(error)}
