"""The operations of reductions: Sum, Average, ... for arrays of every library."""

from typing import Optional

from hvdlite.core.native import lib

Sum = lib.HVD_SUM
Average = lib.HVD_AVERAGE
Min = lib.HVD_MIN
Max = lib.HVD_MAX
Product = lib.HVD_PRODUCT
Adasum = lib.HVD_ADASUM

_NAMES = {
    Average: "Average",
    Sum: "Sum",
    Min: "Min",
    Max: "Max",
    Product: "Product",
    Adasum: "Adasum",
}


def op_of(average: Optional[bool], op: Optional[int]) -> int:
    """Return the operation of a call, given by ``op`` or by the older ``average``.

    :raises ValueError: both are given, or ``op`` is unknown.
    """
    if average is not None and op is not None:
        raise ValueError("give op or average, not both")
    if average is not None:
        return Average if average else Sum
    if op is not None and op not in _NAMES:
        known = ", ".join(f"hvdlite.{name}" for name in _NAMES.values())
        raise ValueError(f"op is {op!r}: expected one of {known}")
    return Average if op is None else op
