"""Starts several collectives on NumPy arrays together, by their full names.

One message tells the other ranks of all of them. A handle's result is the list of all results.
"""

from typing import Any, List

import numpy as np

from hvdlite.core.collectives import dense, reduction, start_all
from hvdlite.core.handles import Handle
from hvdlite.core.native import lib
from hvdlite.core.outs import are_apart, check_outs, copy_to_output, result_array
from hvdlite.core.process_set import group_of
from hvdlite.core.splits import part_shape, rows_of


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
    """Start broadcasts; return a handle."""
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
