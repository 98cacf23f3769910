"""The operations of reductions: Sum, Average, ... for arrays of every library."""

from typing import Dict, Sequence

from hvdlite.core.lazy_names import OPS
from hvdlite.core.native import lib

VALUES: Dict[str, int] = {name: getattr(lib, f"HVD_{name.upper()}") for name in OPS}
# the names of the operations by their numbers in C
NAMES = {VALUES[name]: name for name in sorted(VALUES, key=VALUES.__getitem__)}
Sum, Average = lib.HVD_SUM, lib.HVD_AVERAGE


def __getattr__(name: str) -> int:
    if name in VALUES:
        return VALUES[name]
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def check_linear(name: str, op: int) -> None:
    """Raise ValueError for an operation for which hvdlite has no gradient."""
    if op not in (Sum, Average):
        raise ValueError(
            f"tensor '{name}': op {NAMES[op]} has no gradient: expected Sum or Average"
        )


def scatter_gradient_scale(op: int, scales: Sequence[float], size: int) -> float:
    """Return the factor for the gathered gradients in the backward of a reducescatter.

    As in Horovod, this is ``size`` times the derivative of the sum of all ranks' losses.
    """
    return scales[0] * scales[1] * (size if op == Sum else 1)


# Mean and variance over all ranks' batches, from each rank's count, mean and centered squares.
# These formulas need only sums, so one allreduce suffices (Chan, Golub and LeVeque, "Updating
# Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979). The arrays may be of any
# library, in float64: float64 holds the square of a float32 exactly, so no digits cancel.


def summands(count, mean, squares) -> tuple:
    """Return the values to sum for :func:`merged`; ``squares`` is the sum of (x - mean) ** 2."""
    return count, count * mean, squares + count * mean * mean


def merged(count, total, squares) -> tuple:
    """Return the mean and the biased variance; rounding may make a variance of 0 negative."""
    mean = total / count
    return mean, squares / count - mean * mean
