"""Mean and variance of the ranks' joined batch, from each rank's count, mean and centred squares.

The merge is that of Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for
Computing Sample Variances", 1979, written as sums, so that one allreduce does it. Arrays are those
of any library, in float64: it holds the square of a float32, so that nothing cancels.
"""


def summands(count, mean, squares) -> tuple:
    """Return what is summed over ranks: ``squares`` are summed over ``(x - mean) ** 2``."""
    return count, count * mean, squares + count * mean * mean


def merged(count, total, squares) -> tuple:
    """Return the mean and the biased variance, of which rounding may make a 0 negative."""
    mean = total / count
    return mean, squares / count - mean * mean
