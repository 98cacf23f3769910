"""Marks that skip tests for some versions of MXNet, NumPy and Python: docs/compatibility.md."""

import sys
from importlib.metadata import version

import numpy as np
import pytest

MXNET2 = not version("mxnet").startswith("1.")
no_sparse_gluon = pytest.mark.skipif(MXNET2, reason="MXNet 2's Gluon has no sparse gradients")
no_examples = pytest.mark.skipif(
    MXNET2, reason="the examples are for MXNet 1's Gluon, on mx.nd arrays"
)
no_module = pytest.mark.skipif(MXNET2, reason="MXNet 2 has no Module")

_ALONE = sys.version_info < (3, 12) and [int(n) for n in np.__version__.split(".")[:2]] < [1, 24]
# For tests that import MXNet before hvdlite.
mxnet_alone = pytest.mark.skipif(
    not _ALONE, reason="by itself MXNet needs NumPy before 1.24 and Python before 3.12"
)
