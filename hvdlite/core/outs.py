"""Where a collective on NumPy arrays puts its result: in the user's ``out``, or in a new array."""

from typing import List, Sequence, Tuple

import numpy as np

from hvdlite.core.arguments import wrong


def check_outs(names, outs, shapes, arrays) -> list:
    if outs is None:
        return [None] * len(arrays)
    if not isinstance(outs, (list, tuple)):
        raise wrong("out", outs, f"a list of {len(arrays)} arrays, one for each input")
    if len(outs) != len(arrays):
        raise ValueError(f"out has {len(outs)} arrays: expected {len(arrays)}, one for each input")
    for name, out, shape, array in zip(names, outs, shapes, arrays):
        check_out(name, out, shape, array.dtype)
    return list(outs)


def check_out(name: str, out, shape: tuple, dtype: np.dtype) -> None:
    """Raise if ``out`` can't hold the result. None in ``shape`` is a size that is still unknown."""
    if out is None:
        return
    is_plain = isinstance(out, np.ndarray) and not isinstance(out, np.ma.MaskedArray)
    if not is_plain or not out.flags.writeable:
        what = "read-only" if is_plain else f"a {type(out).__name__}"
        raise ValueError(f"tensor '{name}': out is {what}: expected an array that can be written")
    fits = len(out.shape) == len(shape) and all(n in (None, m) for n, m in zip(shape, out.shape))
    if not fits or out.dtype != dtype:
        expected = str(shape).replace("None", "rows of all ranks")
        raise ValueError(
            f"tensor '{name}': out is {out.dtype} of shape {out.shape}: expected {dtype} of "
            f"shape {expected}"
        )


def are_apart(outs, arrays) -> bool:
    """Return True if each ``out`` shares memory with no array other than its own input."""
    spans = []
    for out, array in zip(outs, arrays):
        if out is None or not out.flags.carray:
            return False
        begin, from_ = out.ctypes.data, array.ctypes.data
        spans.append((begin, begin + out.nbytes, True))
        if begin != from_:
            spans.append((from_, from_ + array.nbytes, False))
    read = written = 0  # addresses where the inputs and the outputs so far end
    for begin, end, is_out in sorted(spans):
        if begin < written or (is_out and begin < read):
            return False
        read, written = (read, max(written, end)) if is_out else (max(read, end), written)
    return True


def overlapping(spans: Sequence[Tuple[int, int]]) -> List[bool]:
    """Return for each span of memory (start, number of bytes) whether it overlaps another span."""
    meets, last = [False] * len(spans), -1  # last: of the spans so far, the one with the last end
    for at in sorted(range(len(spans)), key=lambda i: spans[i]):
        begin, nbytes = spans[at]
        if last >= 0 and nbytes and begin < sum(spans[last]):
            meets[at] = meets[last] = True
        if nbytes and (last < 0 or begin + nbytes > sum(spans[last])):
            last = at
    return meets


def result_array(out, shape: tuple, array: np.ndarray, in_place: bool = False) -> np.ndarray:
    """Return the array for the C library to write to: ``out`` if usable, otherwise a new array."""
    if out is None or not out.flags.carray or out.shape != shape:
        return np.empty(shape, array.dtype)
    same = in_place and out.ctypes.data == array.ctypes.data
    return out if same or not np.may_share_memory(out, array) else np.empty(shape, array.dtype)


def output_buffer(out, array: np.ndarray):
    """Return ``out`` if the C library can write to it without changing ``array``; else None."""
    fits = out is not None and out.flags.carray and not np.may_share_memory(out, array)
    return out if fits else None


def copy_to_output(name: str, result: np.ndarray, out) -> np.ndarray:
    if out is None or out is result:
        return result
    check_out(name, out, result.shape, result.dtype)  # again, now with the true number of rows
    out[...] = result
    return out
