"""The operations of reductions: Sum, Average, ... for arrays of every library."""

from typing import Optional, Sequence

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


def check_linear(name: str, op: int) -> None:
    """Raise ValueError for an operation that has no gradient here."""
    if op not in (Sum, Average):
        raise ValueError(
            f"tensor '{name}': op {_NAMES[op]} has no gradient: expected Sum or Average"
        )


def scatter_gradient_scale(op: int, scales: Sequence[float], size: int) -> float:
    """Return by what a reducescatter's gradient, gathered from ``size`` ranks, is multiplied.

    It is Horovod's scale: ``size`` times that of the sum of all ranks' losses.
    """
    return scales[0] * scales[1] * (size if op == Sum else 1)
