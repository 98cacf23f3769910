"""Starts one or several collectives on NumPy arrays together, by their full names.

One message tells the other ranks of all these collectives. A handle's result is a list of results.
"""

from typing import Any, List, Sequence

import numpy as np

from hvdlite.core.collectives import dense, reduction, start_all
from hvdlite.core.handles import Handle
from hvdlite.core.native import lib
from hvdlite.core.outs import are_apart, check_outs, copy_to_output, output_buffer, result_array
from hvdlite.core.process_set import ProcessSet, global_process_set, group_of
from hvdlite.core.splits import bytes_of_row, part_shape, rows_of, split_members

COPIED = 4096  # bytes; smaller results are copied: to keep one in C's memory costs 2 KB more


def reductions(kind, names, arrays, op, scales, process_set, outs=None) -> Any:
    """Start allreduces or reducescatters, according to ``kind``; return a handle."""
    arrays = [dense(array) for array in arrays]
    shapes = [array.shape for array in arrays]
    if kind == lib.HVD_REDUCESCATTER:
        shapes = [part_shape(shape, process_set) for shape in shapes]
    details = reduction(op, scales, process_set)
    outs = check_outs(names, outs, shapes, arrays)
    return _start_all(kind, names, arrays, shapes, outs, details)


def broadcasts(names, arrays, root_rank, process_set, outs=None) -> Any:
    arrays = [dense(array) for array in arrays]
    shapes = [array.shape for array in arrays]
    outs = check_outs(names, outs, shapes, arrays)
    details = {"root": process_set.number_of(root_rank), "group": group_of(process_set)}
    return _start_all(lib.HVD_BROADCAST, names, arrays, shapes, outs, details)


def _start_all(kind, names, arrays, shapes, outs, details: dict) -> Any:
    """Start the collectives. Results share no memory, even if the user's ``out`` arrays do."""
    apart = len(arrays) == 1 or are_apart(outs, arrays)
    in_place = kind != lib.HVD_REDUCESCATTER
    results = [
        result_array(out if apart else None, shape, array, in_place)
        for out, shape, array in zip(outs, shapes, arrays)
    ]
    members = [{**details, "out_rows": rows_of(shape)} for shape in shapes]
    started = start_all(kind, names, arrays, results, members)

    def finish() -> List[np.ndarray]:
        started.finish()
        return [copy_to_output(*each) for each in zip(names, results, outs)]

    return Handle(started.done, finish)


def gather(names: Sequence[str], arrays: Sequence, process_set: ProcessSet, outs: Sequence) -> Any:
    """Start allgathers; the result is a list of pairs: all rows, and each rank's number of rows."""
    details = [{"group": group_of(process_set)}] * len(names)
    return _start_open(lib.HVD_ALLGATHER, names, arrays, details, process_set, outs)


def exchange(name: str, array: np.ndarray, splits, process_set: ProcessSet, out=None) -> Any:
    """Start an alltoall; the result is a pair: the rows, and the number of rows from each rank."""
    details = {
        "group": group_of(process_set),
        **split_members(array.shape, splits, name, process_set),
    }
    handle = _start_open(lib.HVD_ALLTOALL, [name], [array], [details], process_set, [out])
    return handle.then(lambda pairs: pairs[0])


def _start_open(kind, names, arrays, details, process_set: ProcessSet, outs) -> Handle:
    """Start collectives whose numbers of rows are known only when all ranks have made the call.

    Therefore the C library allocates the memory of the results.
    """
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
