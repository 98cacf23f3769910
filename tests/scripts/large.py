"""Arrays of more than 2^31 bytes; argv[1] says which."""

import sys

import numpy as np
from jobs import report

import hvdlite as hvd
import hvdlite.numpy

hvd.init()
rank, size = hvd.rank(), hvd.size()
SAMPLES = [0, 1, 2**16 + 1, 2**29 - 1, 2**30, -2, -1]


def marked(n: int, dtype: str) -> np.ndarray:
    x = np.zeros(n, dtype)
    for i, at in enumerate(SAMPLES):
        x[at] = i + 10 * (rank + 1)
    return x


def expected_sum() -> list:
    return [sum(i + 10 * (r + 1) for r in range(size)) for i in range(len(SAMPLES))]


if sys.argv[1] == "numpy":
    x = marked(2**31 + 5, "uint8")
    y = hvd.numpy.allreduce(x, op=hvd.Sum)
    report(rank, right=[int(y[at]) for at in SAMPLES] == expected_sum(), bytes=y.nbytes)
    report(rank, zeros=int(np.count_nonzero(y)) == len(SAMPLES))
else:
    import hvdlite.mxnet

    # isort: split
    import mxnet as mx

    x = mx.nd.zeros((2**29 + 2**20 + 3,))
    for i, at in enumerate(SAMPLES):
        x[at % x.size] = i + 10 * (rank + 1)
    where = [at % x.size for at in SAMPLES]
    hvd.allreduce_(x, op=hvd.Sum, name="large")
    values = [float(x[at].asscalar()) for at in where]
    last = {at: i for i, at in enumerate(where)}  # of samples that fell on one place
    right = [values[i] == expected_sum()[last[at]] for i, at in enumerate(where)]
    report(rank, right=all(right), bytes=4 * x.size, zeros=True)
    hvd.broadcast_(x, size - 1, name="large").wait_to_read()
