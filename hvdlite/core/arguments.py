"""Checks arguments for all frameworks. An error names the argument, its value and what to give."""

import operator
from typing import Any, Optional

import numpy as np

from hvdlite.core.native import ffi
from hvdlite.core.reduce_ops import NAMES, Average, Sum

_OP = "op", "one of " + ", ".join(f"hvdlite.{name}" for name in NAMES.values())
_ROOT = "root_rank", "a rank of the job, a whole number"
_FACTOR = "a finite number"
_MEMBERS = {  # member of hvd_tensor -> name of the user's argument, expected value
    "op": _OP,
    "root": _ROOT,
    "priority": ("priority", "a whole number of 32 bits"),
    "prescale": ("prescale_factor", _FACTOR),
    "postscale": ("postscale_factor", _FACTOR),
}
_NO_NUMBERS = bool, np.bool_, str, bytes  # refused, although Python converts them to numbers
_C_INTS = range(-(2**31), 2**31)
PLAIN = {int, float, ffi.CData}  # types that a member of hvd_tensor takes without conversion


def wrong(what: str, value: Any, expected: str) -> ValueError:
    shown = repr(value)
    return ValueError(f"{what} is {shown[:80]}{'...' * (len(shown) > 80)}: expected {expected}")


def whole(value: Any, what: str, expected: str, allowed: range = _C_INTS) -> int:
    """Return a whole number of any library as Python's int; a bool is an error."""
    try:
        if isinstance(value, _NO_NUMBERS) or operator.index(value) not in allowed:
            raise TypeError
    except TypeError:
        raise wrong(what, value, expected) from None
    return operator.index(value)


def factor(value: Any, what: str) -> float:
    """Return a number of any library as Python's float; a bool or a text is an error."""
    try:
        if isinstance(value, _NO_NUMBERS):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise wrong(what, value, _FACTOR) from None


def scales_of(prescale_factor: Any, postscale_factor: Any) -> tuple:
    """Return both factors as Python's floats, for callers that calculate with the factors."""
    if type(prescale_factor) is float and type(postscale_factor) is float:
        return prescale_factor, postscale_factor
    return factor(prescale_factor, "prescale_factor"), factor(postscale_factor, "postscale_factor")


def check_compressor(compression: Any, also: str = "") -> None:
    """Raise ValueError unless ``compression`` compresses arrays in Python.

    :param also: what else the caller accepts; the error names it.
    """
    methods = (getattr(compression, name, None) for name in ("compress", "decompress"))
    if not all(map(callable, methods)):
        known = f"hvd.Compression.none, .fp16 or .bf16,{also} or a class"
        raise wrong("compression", compression, f"{known} with compress() and decompress()")


def rank_of(root_rank: Any) -> int:
    """Return ``root_rank`` as Python's int; the C library checks that the job has this rank."""
    return whole(root_rank, *_ROOT)


def op_of(average: Optional[bool], op: Optional[int]) -> int:
    """Return the operation of a call, given by ``op`` or by the older ``average``.

    :raises ValueError: both are given, or one is wrong.
    """
    if average is None:
        if op is None:
            return Average
        return op if type(op) is int and op in NAMES else whole(op, *_OP, range(len(NAMES)))
    if op is not None:
        raise ValueError("give op or average, not both")
    if type(average) is not bool:
        whole(average, "average", "True or False", range(2))
    return Average if average else Sum


def plain(members: dict) -> dict:
    """Return members of ``hvd_tensor``, with numbers of other libraries converted to Python's.

    :raises ValueError: a member that the user has given has a wrong value.
    """
    return {member: _plain(member, value) for member, value in members.items()}


def _plain(member: str, value: Any) -> Any:
    if member not in _MEMBERS:
        return value
    what, expected = _MEMBERS[member]
    return factor(value, what) if expected is _FACTOR else whole(value, what, expected)


def refuse_mask(array) -> None:
    """Raise ValueError for a masked array, also in a list, because its mask would be ignored."""
    if isinstance(array, np.ma.MaskedArray):
        raise ValueError(
            "the array is masked, and its mask would be lost: pass array.filled(0), or send "
            "array.data and the mask, np.ma.getmaskarray(array), in two calls"
        )
    if isinstance(array, (list, tuple)):
        for each in array:
            refuse_mask(each)
