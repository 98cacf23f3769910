"""Collectives on row_sparse arrays: each rank sends only the rows that its array has.

Each call waits for backward and for the other ranks, because the ranks exchange their numbers of
rows, and MXNet knows the number of rows only after backward.
"""

from typing import Sequence, Tuple

import mxnet as mx
import numpy as np

from hvdlite.core import topology
from hvdlite.core.collectives import DTYPES, gather_numbers, run_all
from hvdlite.core.native import MISMATCH, HvdliteError, HvdliteValueError, lib
from hvdlite.core.process_set import ProcessSet, global_process_set, group_of
from hvdlite.core.reduce_ops import Average, Sum


def is_sparse(array) -> bool:
    """Return True if the array is row_sparse: it has some rows of a larger array."""
    return isinstance(array, mx.nd.sparse.RowSparseNDArray)


def allreduce_rows(
    arrays: Sequence, name: str, op: int = Sum, process_set: ProcessSet = global_process_set,
    states: int = 0,
):  # fmt: skip
    """Add up ``arrays``, and return the sum or average over all ranks as a new array.

    The result has every row that any rank has, in rising order. Every rank adds the values of a row
    in the same order, float16 in float32, so the results are bitwise equal. An average divides by
    the number of all ranks, even if some ranks lack the row.

    :param arrays: RowSparseNDArrays of one shape, the same on every rank, with any number of rows.
    :param name: the same on every rank.
    :param op: Sum or Average.
    :param states: the digest of the states that the optimizer has just loaded.
    :raises ValueError: at the call: another op or storage type, or a dtype that NumPy lacks.
    :raises hvdlite.HvdliteError: on every rank: the ranks disagree on shape or dtype.
    """
    if op not in (Sum, Average):
        raise HvdliteValueError(
            f"tensor '{name}' is row_sparse: expected op Sum or Average: for other ops send dense "
            "arrays (sparse_as_dense=True)"
        )
    indices, values = _rows_of(arrays, name)
    rows = _gather(indices, values, arrays[0].shape[0], name, process_set, states)
    indices, values = _sum_rows(*rows)
    if op == Average:
        values = values / process_set.size()
    return _sparse(indices, values, arrays[0])


def broadcast_rows(array, root_rank: int, name: str, process_set: ProcessSet = global_process_set):
    """Return a new array with rank ``root_rank``'s rows; errors as for :func:`allreduce_rows`."""
    indices, values = _rows_of([array], name)
    if not 0 <= root_rank < topology.size():
        last = topology.size() - 1
        raise HvdliteValueError(f"tensor '{name}': root_rank is {root_rank}: expected 0 to {last}")
    if topology.rank() != root_rank:
        indices, values = indices[:0], values[:0]
    rows = _gather(indices, values, array.shape[0], name, process_set)
    return _sparse(*rows, array)


def _rows_of(arrays: Sequence, name: str) -> Tuple[np.ndarray, np.ndarray]:
    for array in arrays:
        if not is_sparse(array):
            raise HvdliteValueError(
                f"tensor '{name}' has storage type {array.stype}: expected row_sparse"
            )
        if np.dtype(array.dtype) not in DTYPES:
            known = ", ".join(map(str, DTYPES))
            raise HvdliteValueError(
                f"tensor '{name}' is {np.dtype(array.dtype)}: expected one of {known}"
            )
        if array.shape != arrays[0].shape:
            shapes = ", ".join(str(array.shape) for array in arrays)
            raise HvdliteValueError(
                f"tensor '{name}' has the shapes {shapes} on the contexts of this rank: expected "
                "one shape"
            )
    indices = [array.indices.asnumpy().astype(np.int64) for array in arrays]
    values = [array.data.asnumpy() for array in arrays]
    return np.concatenate(indices), np.concatenate(values)


def _gather(
    indices: np.ndarray, values: np.ndarray, height: int, name: str, process_set: ProcessSet,
    states: int = 0,
) -> Tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Return the rows of all ranks in the order of ranks; raise if ranks disagree on ``height``."""
    counts = gather_numbers([len(indices), height], f"sparse.{name}", process_set, states=states)
    heights = counts[:, 1].tolist()
    if len(set(heights)) > 1:
        each = "; ".join(f"rank {r}: {rows}" for r, rows in zip(process_set.ranks, heights))
        raise HvdliteError(
            f"tensor '{name}': ranks disagree on the number of rows of the whole array: {each}. "
            "Submit the same shape on every rank.",
            kind=MISMATCH, tensor=name,
        )  # fmt: skip
    rows = int(counts[:, 0].sum())
    arrays = [indices, values]
    joined = [np.empty((rows, *array.shape[1:]), array.dtype) for array in arrays]
    names = [f"sparse.{name}.indices", f"sparse.{name}.values"]
    members = [{"out_rows": rows, "group": group_of(process_set)}] * 2
    run_all(lib.HVD_ALLGATHER, names, arrays, joined, members)
    return joined[0], joined[1]


def _sum_rows(indices: np.ndarray, values: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """Add up rows with the same index; return indices and sums in rising order of the index."""
    if not len(indices):
        return indices, values
    order = np.argsort(indices, kind="stable")
    indices = indices[order]
    starts = np.flatnonzero(np.diff(indices, prepend=indices[0] - 1))
    wide = np.float32 if values.dtype == np.float16 else values.dtype
    return indices[starts], np.add.reduceat(values[order], starts, axis=0, dtype=wide)


def _sparse(indices: np.ndarray, values: np.ndarray, like):
    """Return a RowSparseNDArray of these rows; shape, dtype and context are those of ``like``."""
    return mx.nd.sparse.row_sparse_array(
        (values.astype(like.dtype, copy=False), indices),
        shape=like.shape, dtype=like.dtype, ctx=like.context,
    )  # fmt: skip
