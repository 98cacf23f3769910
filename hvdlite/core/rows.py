"""Allgather and alltoall of NumPy arrays, and how many rows of an array go to each rank.

The number of rows that arrive is known only when all ranks have made the call. So the C library
allocates the memory of the result.
"""

import zlib
from typing import Any, List, Sequence

import numpy as np

from hvdlite.core.collectives import refuse_mask, start_all
from hvdlite.core.handles import Handle
from hvdlite.core.native import HvdliteValueError, lib
from hvdlite.core.outs import are_apart, copy_to_output, output_buffer
from hvdlite.core.process_set import ProcessSet, global_process_set, group_of

COPIED = 4096  # bytes; smaller results are copied, because C's memory keeps 2 KB more alive


def rows_of(shape: Sequence[int]) -> int:
    """Return the number of rows of an array in an allgather; a 0-d array counts as one row."""
    return shape[0] if shape else 1


def bytes_of_row(array: np.ndarray) -> int:
    return int(np.prod(array.shape[1:], dtype=np.int64)) * array.itemsize


def part_shape(shape: Sequence[int], process_set: ProcessSet) -> tuple:
    """Return the shape of this rank's part in a reducescatter, which refuses a 0-d array later."""
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
            f"tensor '{name}' is 0-d: expected at least one dimension, since an alltoall splits "
            "the first one among the ranks"
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


def gather(names: Sequence[str], arrays: Sequence, process_set: ProcessSet, outs: Sequence) -> Any:
    """Start allgathers; the result is a list of pairs: all rows, and how many each rank sent."""
    details = [{"group": group_of(process_set)}] * len(names)
    return _start(lib.HVD_ALLGATHER, names, arrays, details, process_set, outs)


def exchange(name: str, array: np.ndarray, splits, process_set: ProcessSet, out=None) -> Any:
    """Start an alltoall; the result is a pair: the rows, and how many each rank sent."""
    details = {
        "group": group_of(process_set),
        **split_members(array.shape, splits, name, process_set),
    }
    handle = _start(lib.HVD_ALLTOALL, [name], [array], [details], process_set, [out])
    return handle.then(lambda pairs: pairs[0])


def _start(kind, names, arrays, details, process_set: ProcessSet, outs) -> Handle:
    apart = len(arrays) == 1 or are_apart(outs, arrays)
    buffers = [output_buffer(out, array) if apart else None for out, array in zip(outs, arrays)]
    members = [
        {**of, "open": 1, "out_rows": len(into) if into is not None and into.ndim else 0}
        for of, into in zip(details, buffers)
    ]
    started = start_all(kind, names, arrays, buffers, members)

    def finish() -> list:
        started.finish()
        pairs = []
        for number, (name, array, out) in enumerate(zip(names, arrays, outs)):
            memory, counts = started.result(number, process_set.size(), bytes_of_row(array))
            if memory is None:
                pairs.append((out, counts))
                continue
            result: np.ndarray = np.ndarray((counts.sum(), *array.shape[1:]), array.dtype, memory)
            result = result.copy() if result.nbytes < COPIED else result
            pairs.append((copy_to_output(name, result, out), counts))
        return pairs

    return Handle(started.done, finish)


def gather_bytes(
    data: bytes, name: str, process_set: ProcessSet = global_process_set
) -> List[bytes]:
    """Return the ``data`` of every rank, in the order of ranks. Collective."""
    mine = np.frombuffer(data, np.uint8)
    ((everyone, lengths),) = gather([name], [mine], process_set, [None]).synchronize()
    return [part.tobytes() for part in np.split(everyone, np.cumsum(lengths)[:-1])]


def fingerprint(*facts) -> int:
    """Return a number by which ranks detect that their facts (dtype, columns) differ.

    The following collective would report the difference, too, but only when a rank waits for it.
    """
    return zlib.crc32(repr(facts).encode())


def alike(gathered: np.ndarray) -> bool:
    """Return True if the rows of ``gathered``, one row from each rank, are equal."""
    return bool((gathered == gathered[0]).all())
