"""Batch normalisation of all ranks' rows in float64, where the mean is far from 0."""

import numpy as np

import hvdlite as hvd

EPSILON = 1e-5


def check_far_from_zero(normalise) -> None:
    """Check ``normalise(x, dy)``, which returns y and dx of this rank's (rows, 8, 8, channels).

    The mean is 1000 deviations; ranks differ in means and in rows; the last channel is constant.
    """
    randoms = [np.random.RandomState(r) for r in range(hvd.size())]
    parts = [1000 + r / 2 + random.randn(2 + 3 * r, 8, 8, 3) for r, random in enumerate(randoms)]
    parts = [part.astype(np.float32) for part in parts]
    for part in parts:
        part[..., -1] = 1000
    x = np.concatenate(parts)
    dy = np.random.RandomState(9).randn(*x.shape).astype(np.float32)
    own = np.repeat(np.arange(hvd.size()), [len(part) for part in parts]) == hvd.rank()
    for got, expected in zip(normalise(x[own], dy[own]), _in_float64(x, dy)):
        difference = np.abs(got - expected[own]).max((0, 1, 2))
        assert (difference[:2] <= 1e-3).all(), difference
        assert np.isfinite(difference).all(), difference


def _in_float64(x, dy) -> tuple:
    x, axes = x.astype(np.float64), (0, 1, 2)
    scale = 1 / np.sqrt(x.var(axes) + EPSILON)
    y = (x - x.mean(axes)) * scale
    return y, scale * (dy - dy.mean(axes) - y * (y * dy).mean(axes))
