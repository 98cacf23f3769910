"""hvd.Guard names weights that differ between ranks, and gradients with NaN or infinity."""

import numpy as np
import pytest
from libraries import mx, torch

import hvdlite


class OfMXNet:
    hvd = hvdlite

    def __init__(self, *shapes) -> None:
        self.given = [mx.gluon.Parameter(f"p{i}", shape=shape) for i, shape in enumerate(shapes)]
        for param in self.given:
            param.initialize(mx.init.One())

    def set(self, i: int, value: float) -> None:
        self.given[i].data()[-1:] = value

    def backward(self, factors) -> None:
        with mx.autograd.record():
            loss = sum((p.data() * factor).sum() for p, factor in zip(self.given, factors))
        loss.backward()


class OfTorch:
    def __init__(self, *shapes) -> None:
        self.hvd = hvdlite.torch
        dtypes = (torch.float16, torch.bfloat16)
        params = [torch.nn.Parameter(torch.ones(s, dtype=d)) for s, d in zip(shapes, dtypes)]
        self.given = [(f"p{i}", param) for i, param in enumerate(params)]

    def set(self, i: int, value: float) -> None:
        self.given[i][1].data[-1:] = value

    def backward(self, factors) -> None:
        sum((p * factor).sum() for (_, p), factor in zip(self.given, factors)).backward()


kinds = [kind for kind, library in ((OfMXNet, mx), (OfTorch, torch)) if library]
every_kind = pytest.mark.parametrize("kind", kinds)


def guarded(kind, every: int) -> tuple:
    """Return parameters whose gradients are all 1, and a Guard that checks these parameters."""
    params = kind((3,), (2, 5))
    params.backward([1, 1])
    return params, params.hvd.Guard(params.given, every=every)


def error_of(guard) -> str:
    with pytest.raises(hvdlite.HvdliteError) as caught:
        guard.step()
    text = str(caught.value)
    assert hvdlite.allgather_object(text) == [text] * hvdlite.size()
    return text


@every_kind
def test_the_error_of_a_differing_weight_names_parameter_rank_and_step(kind, rank, size, several):
    params, guard = guarded(kind, every=3)
    for _ in range(3):
        guard.step()
    if rank == size - 1:
        params.set(1, 0.5)
    text = error_of(guard)
    assert text.startswith("before step 4: parameter 'p1' differs between ranks: ")
    assert text.endswith("equal before step 1")
    assert size == 2 or f"rank {size - 1} differs from the other {size - 1};" in text


@every_kind
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_the_error_of_a_gradient_with_nan_names_parameter_and_rank(kind, value, rank, size):
    params = kind((3,), (2, 5))
    params.backward([1, value if rank == size - 1 else 1])
    text = error_of(params.hvd.Guard(params.given, every=1))
    assert text.startswith("before step 1: the gradient of parameter 'p1' has NaN or infinite")
    assert f"on rank {size - 1} (10 values)" in text


@every_kind
def test_a_guard_sends_nothing_between_two_checks(kind, rank):
    """Therefore ranks may call step() different numbers of times between two checks."""
    params, guard = guarded(kind, every=100)
    guard.step()
    params.set(0, float(rank))
    for _ in range(rank):
        guard.step()


@pytest.mark.skipif(not mx, reason="needs MXNet: row_sparse weights")
def test_a_guard_checks_sparse_weights(rank, several):
    param = mx.gluon.Parameter("p", shape=(5, 2), stype="row_sparse", grad_stype="row_sparse")
    param.initialize(mx.init.One())
    guard = hvdlite.Guard([param], every=1)
    guard.step()
    mx.nd.sparse.retain(param._data[0], mx.nd.array([rank])).copyto(param._data[0])
    assert "parameter 'p' differs between ranks" in error_of(guard)


@every_kind
def test_a_guard_refuses_zero_steps_between_checks(kind):
    with pytest.raises(ValueError, match="every is 0: expected a whole number of at least 1"):
        guarded(kind, every=0)
