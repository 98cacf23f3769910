"""Collectives on NumPy arrays: each call waits until the work is done. No MXNet needed.

Element types: float16, float32, float64, uint8, int8, int32, int64 and bool.
"""

from typing import Optional

import numpy as np

from hvdlite import context
from hvdlite._native import ffi, lib, new_error, raise_error
from hvdlite.groups import ProcessSet, global_process_set
from hvdlite.names import tensor_name

Sum = lib.HVD_SUM
Average = lib.HVD_AVERAGE

DTYPES = {
    np.dtype(name): getattr(lib, "HVD_" + name.upper())
    for name in ("float16", "float32", "float64", "uint8", "int8", "int32", "int64", "bool")
}
_abandoned: list = []  # work whose wait was interrupted; its memory must stay


def allreduce(
    array: np.ndarray,
    name: Optional[str] = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> np.ndarray:
    """Return ``op`` over all ranks of ``array * prescale_factor``, times ``postscale_factor``.

    :param array: of the same shape and dtype on every rank.
    :raises ValueError: an argument that can't be right, before anything is sent.
    :raises hvdlite.HvdliteError: the ranks disagree, one has left, or MPI failed.
    """
    array = _dense(array)
    out = np.empty_like(array)
    _run(
        lib.HVD_ALLREDUCE, tensor_name("allreduce", name, process_set.process_set_id), array, out,
        op=op, prescale=prescale_factor, postscale=postscale_factor, process_set=process_set,
    )  # fmt: skip
    return out


def broadcast(
    array: np.ndarray,
    root_rank: int = 0,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> np.ndarray:
    """Return rank ``root_rank``'s array; ``array`` has the same shape and dtype on every rank."""
    array = _dense(array)
    out = np.empty_like(array)
    _run(
        lib.HVD_BROADCAST, tensor_name("broadcast", name, process_set.process_set_id), array, out,
        root=process_set.number_of(root_rank), process_set=process_set,
    )  # fmt: skip
    return out


def allgather(
    array: np.ndarray,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> np.ndarray:
    """Return the arrays of all ranks joined along the first dimension, which may differ by rank."""
    array, name = _dense(array), tensor_name("allgather", name, process_set.process_set_id)
    rows = sum(gather_rows(array.shape[0] if array.ndim else 1, name, process_set))
    out = np.empty((rows, *array.shape[1:]), array.dtype)
    _run(lib.HVD_ALLGATHER, name, array, out, out_rows=rows, process_set=process_set)
    return out


def join(process_set: ProcessSet = global_process_set) -> int:
    """Say that this rank has no more data; return the last rank to say so, when all have.

    Until then zeros stand in for this rank in the other ranks' allreduces with op Sum, Average
    (over the ranks that still have data) or Adasum; other collectives are an error on those ranks.
    For ranks with different numbers of batches, at the end of an epoch::

        for batch in batches:
            ...
            trainer.step(batch_size)
        last = hvd.join()
        hvd.broadcast_parameters(params, root_rank=last)  # it has taken every step
    """
    last = np.empty(1, np.int64)
    context.wait_all()  # so that the last one has taken every step
    _run(lib.HVD_JOIN, "join", last, last, process_set=process_set)
    return process_set.ranks[last[0]]


def gather_rows(rows: int, name: str, process_set: ProcessSet = global_process_set) -> list:
    """Return what every rank gives for ``rows``, in the order of ranks."""
    out = np.empty(process_set.size(), np.int64)
    _run(
        lib.HVD_ALLGATHER, f"{name}.rows", np.array([rows], np.int64), out,
        out_rows=len(out), process_set=process_set,
    )  # fmt: skip
    return out.tolist()


def _dense(array: np.ndarray) -> np.ndarray:
    array = np.asarray(array, order="C")
    if array.dtype not in DTYPES:
        known = ", ".join(str(dtype) for dtype in DTYPES)
        raise ValueError(f"dtype {array.dtype} is not supported: expected one of {known}")
    return array


def _run(
    kind, name, array, out, op=Sum, root=0, prescale=1.0, postscale=1.0, out_rows=0,
    process_set=global_process_set,
) -> None:  # fmt: skip
    encoded = ffi.new("char[]", name.encode())
    dims = ffi.new("int64_t[]", array.shape or [0])
    tensor = ffi.new(
        "hvd_tensor *",
        {
            "name": encoded, "kind": kind, "dtype": DTYPES[array.dtype], "op": op, "root": root,
            "prescale": prescale, "postscale": postscale, "ndim": array.ndim, "dims": dims,
            "in": ffi.cast("void *", array.ctypes.data), "out": ffi.cast("void *", out.ctypes.data),
            "out_rows": out_rows, "group": process_set.group(),
        },
    )  # fmt: skip
    error = new_error()
    handle = lib.hvd_start(tensor, error)
    if handle == ffi.NULL:
        raise_error(error)
    try:
        while not lib.hvd_finish(handle, 0.1, error):  # in short waits: Ctrl-C gets through
            pass
    except BaseException:
        _abandoned.append((array, out))
        raise
    if error.code != lib.HVD_OK:
        raise_error(error)
