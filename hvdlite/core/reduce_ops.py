"""The operations of reductions: Sum, Average, ... for arrays of every library."""

from typing import Sequence

from hvdlite.core.native import lib

Sum = lib.HVD_SUM
Average = lib.HVD_AVERAGE
Min = lib.HVD_MIN
Max = lib.HVD_MAX
Product = lib.HVD_PRODUCT
Adasum = lib.HVD_ADASUM

NAMES = {
    Average: "Average",
    Sum: "Sum",
    Min: "Min",
    Max: "Max",
    Product: "Product",
    Adasum: "Adasum",
}


def check_linear(name: str, op: int) -> None:
    """Raise ValueError for an operation that has no gradient here."""
    if op not in (Sum, Average):
        raise ValueError(
            f"tensor '{name}': op {NAMES[op]} has no gradient: expected Sum or Average"
        )


def scatter_gradient_scale(op: int, scales: Sequence[float], size: int) -> float:
    """Return by what a reducescatter's gradient, gathered from ``size`` ranks, is multiplied.

    It is Horovod's scale: ``size`` times that of the sum of all ranks' losses.
    """
    return scales[0] * scales[1] * (size if op == Sum else 1)
