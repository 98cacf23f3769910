"""Collectives on NumPy arrays that are waited for and come again."""

from typing import Any, Callable

import numpy as np

from hvdlite.core.collectives import dense, memory_of, reduction, result_of
from hvdlite.core.names import tensor_name
from hvdlite.core.native import ffi, lib
from hvdlite.core.outs import deliver
from hvdlite.core.prepared import find, note
from hvdlite.core.process_set import group_of
from hvdlite.core.rows import rows_of

_memory, _Array = ffi.from_buffer, np.ndarray


def again(verb: str, begin: Callable, array: np.ndarray, how: tuple, out) -> Any:
    """Do a collective, which is prepared if it has come before with all its arguments.

    :param begin: starts it otherwise, with ``array``, ``how`` and ``out``; returns a handle.
    :param how: all other arguments. The last is the process set.
    """
    call: tuple = ()
    if array.__class__ is _Array:
        flags = array.flags
        if flags.carray if out is array else flags.c_contiguous:
            call = verb, how, array.dtype, array.shape
    try:
        known = find(call)
    except TypeError:
        call, known = (), None
    if known:
        source = _memory(array)
        if out is array:
            result, there = out, source if known.in_place else None
        elif out is None:
            result = np.empty(known.shape, array.dtype)
            there = _memory(result)
        else:
            result, there = out, _place(out, known.shape, array.dtype, source)
        if there is not None:
            handle = known.run(source, there, (array, result))
            return result if handle is None else _moved(handle, array, how, result, out)
    result = begin(array, *how, out).synchronize()
    if call and array.dtype.kind != "V":  # of ml_dtypes, which lacks buffers on old NumPy
        note(call, lambda: described(verb, array, result.shape, how))
    return result


def described(verb: str, array: np.ndarray, shape, how: tuple) -> tuple:
    """Return what a ``Prepared`` is made of; ``shape`` is the result's, None: the array's."""
    name, process_set = how[0 if verb in ("allreduce", "reducescatter") else -2], how[-1]
    if verb in ("allreduce", "reducescatter"):
        members = reduction(how[1], how[2:4], process_set)
    else:
        members = {"group": group_of(process_set)}
    if verb == "broadcast":
        members["root"] = process_set.number_of(how[0])
    elif verb != "allreduce":
        members.update(out_rows=rows_of(shape), open=int(verb != "reducescatter"))
    kind = getattr(lib, f"HVD_{verb.upper()}")
    full = tensor_name(verb, name, process_set)
    return full, memory_of(dense(array)), members, process_set, kind, shape


def _place(out, shape, dtype, source):
    """Return the memory of ``out`` if the C library can write a result of this shape there."""
    if out.__class__ is _Array and out.flags.carray and out.shape == shape and out.dtype == dtype:
        there = _memory(out)
        if source + len(source) <= there or there + len(there) <= source:
            return there
    return None


def _moved(handle, array: np.ndarray, how: tuple, result, out) -> np.ndarray:
    """Return ``result``, or what does not fit there: other ranks have brought other rows."""
    name, process_set = how[-2:]
    row = array.shape[1:]
    row_bytes = int(np.prod(row, dtype=np.int64)) * array.itemsize
    memory, came = result_of(handle, result.ctypes.data, process_set.size(), row_bytes)
    if memory is None:
        return result
    made: np.ndarray = np.ndarray((came.sum(), *row), array.dtype, memory)
    return deliver(name, made.copy(), out)
