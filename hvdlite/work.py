"""Collectives as the C library takes them: described, started, waited for. Memory is NumPy's."""

from typing import List, Sequence

import numpy as np

from hvdlite._native import call, exception_of, ffi, lib, new_error
from hvdlite.groups import ProcessSet, global_process_set

DTYPES = {
    np.dtype(name): getattr(lib, "HVD_" + name.upper())
    for name in ("float16", "float32", "float64", "uint8", "int8", "int32", "int64", "bool")
}
_abandoned: list = []  # work whose wait was interrupted; its memory must stay


def describe(kind: int, name: str, splits=None, **members):
    """Return an ``hvd_tensor *``, and what it points to, which the caller holds on to.

    :param splits: how many rows go from each rank to each other: an int64 matrix.
    :param members: more members of ``hvd_tensor``.
    """
    alive = [ffi.new("char[]", name.encode())]
    members.update(kind=kind, name=alive[0])
    if splits is not None:
        alive.append(ffi.from_buffer("int64_t[]", splits))
        members.update(splits=alive[1], nsplits=splits.size)
    return ffi.new("hvd_tensor *", members), alive


def run(kind: int, name: str, array: np.ndarray, out: np.ndarray, **members) -> None:
    """Do one collective from ``array`` to ``out``, both contiguous; they may be the same."""
    run_all(kind, [name], [array], [out], [members])


def run_all(
    kind: int,
    names: Sequence[str],
    arrays: Sequence[np.ndarray],
    outs: Sequence[np.ndarray],
    members: Sequence[dict],
) -> None:
    """Do several at once. All have ended when this returns, or raises what went wrong with any."""
    described = [_describe(kind, *one) for one in zip(names, arrays, outs, members)]
    if len(described) > 1:  # before any of them is sent
        for tensor, _alive in described:
            call(lib.hvd_validate, tensor)
    errors: List[Exception] = []
    try:
        handles = [_start(tensor, errors) for tensor, _alive in described]
        for handle in handles:
            _wait(handle, errors)
    except BaseException:
        _abandoned.append((arrays, outs))
        raise
    if errors:
        raise errors[0] if len(errors) == 1 else type(errors[0])("; ".join(map(str, errors)))


def _describe(kind: int, name: str, array: np.ndarray, out: np.ndarray, members: dict):
    dims = ffi.new("int64_t[]", array.shape or [0])
    memory = {
        "in": ffi.cast("void *", array.ctypes.data),
        "out": ffi.cast("void *", out.ctypes.data),
    }
    shape = {"dtype": DTYPES[array.dtype], "ndim": array.ndim, "dims": dims}
    tensor, alive = describe(
        kind, name, **{"prescale": 1, "postscale": 1, **members}, **memory, **shape
    )
    return tensor, [*alive, dims]


def _start(tensor, errors: List[Exception]):
    error = new_error()
    handle = lib.hvd_start(tensor, error)
    if handle == ffi.NULL:
        errors.append(exception_of(error))
    return handle


def _wait(handle, errors: List[Exception]) -> None:
    error = new_error()
    if handle == ffi.NULL:
        return
    while not lib.hvd_finish(handle, 0.1, error):  # in short waits: Ctrl-C gets through
        pass
    if error.code != lib.HVD_OK:
        errors.append(exception_of(error))


def gather_numbers(
    numbers: Sequence[int], name: str, process_set: ProcessSet = global_process_set
) -> np.ndarray:
    """Return what every rank gives for ``numbers``, as many everywhere: one row a rank."""
    mine = np.array([numbers], np.int64)
    everyone = np.empty((process_set.size(), len(numbers)), np.int64)
    run(
        lib.HVD_ALLGATHER, f"{name}.rows", mine, everyone,
        out_rows=len(everyone), group=process_set.group(),
    )  # fmt: skip
    return everyone


def gather_bytes(
    data: bytes, name: str, process_set: ProcessSet = global_process_set
) -> List[bytes]:
    """Return what every rank gives for ``data``, in the order of ranks."""
    lengths = gather_numbers([len(data)], name, process_set)[:, 0]
    mine, everyone = np.frombuffer(data, np.uint8), np.empty(lengths.sum(), np.uint8)
    run(
        lib.HVD_ALLGATHER, name, mine, everyone,
        out_rows=len(everyone), group=process_set.group(),
    )  # fmt: skip
    return [part.tobytes() for part in np.split(everyone, np.cumsum(lengths)[:-1])]
