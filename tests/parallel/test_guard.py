"""Guard: weights that differ between ranks, NaN and infinity are named, alike on every rank."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

import hvdlite as hvd


def make_net() -> gluon.nn.Sequential:
    net = gluon.nn.Sequential(prefix="net_")
    with net.name_scope():
        net.add(gluon.nn.Dense(3, in_units=4), gluon.nn.Dense(2, in_units=3))
    net.initialize(mx.init.One())
    return net


def backward(net, scale: float = 1) -> None:
    with autograd.record():
        loss = net(mx.nd.ones((2, 4)) * scale).sum()
    loss.backward()


def error_of(guard) -> str:
    with pytest.raises(hvd.HvdliteError) as caught:
        guard.step()
    return str(caught.value)


def test_equal_weights_and_numbers_pass():
    net = make_net()
    guard = hvd.Guard(net.collect_params(), every=2)
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd")
    for _ in range(5):
        backward(net)
        guard.step()
        trainer.step(2)


def test_a_weight_that_comes_apart_is_named_with_rank_and_step(rank, size):
    if size < 2:
        pytest.skip("needs two ranks")
    net = make_net()
    guard = hvd.Guard(net.collect_params(), every=3)
    backward(net)
    for _ in range(3):
        guard.step()
    if rank == size - 1:
        net[1].bias.set_data(mx.nd.array([0, 1e-30]))
    text = error_of(guard)
    assert text.startswith("before step 4: parameter 'net_dense1_bias' differs between ranks: ")
    assert text.endswith("equal before 1")
    if size > 2:
        assert f"rank {size - 1} from the other {size - 1};" in text
    assert hvd.allgather_object(text) == [text] * size


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_gradient_that_is_no_number_is_named_with_its_rank(value, rank, size):
    net = make_net()
    guard = hvd.Guard(net.collect_params(), every=1)
    backward(net, value if rank == size - 1 else 1)
    text = error_of(guard)
    assert "before step 1: the gradient of parameter 'net_dense0_weight' has NaN or" in text
    assert f"on rank {size - 1} (12)" in text


def test_what_is_not_looked_at_passes(rank):
    """Between two looks nothing is sent: ranks may even call it more or less often."""
    net = make_net()
    guard = hvd.Guard(net.collect_params(), every=100)
    backward(net)
    guard.step()
    net[0].weight.set_data(net[0].weight.data() * (1 + rank))
    for _ in range(rank):
        guard.step()


def test_a_trainer_guards_itself_if_the_environment_says_so(monkeypatch, rank):
    monkeypatch.setenv("HVDLITE_GUARD_STEPS", "1")
    net = make_net()
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd")
    backward(net)
    trainer.step(2)
    backward(net, np.nan if rank == 0 else 1)
    with pytest.raises(hvd.HvdliteError, match=r"before step 2: the gradient of .* on rank 0 "):
        trainer.step(2)


def test_wrong_arguments(monkeypatch):
    with pytest.raises(ValueError, match="every is 0: expected a whole number of at least 1"):
        hvd.Guard({}, every=0)
    monkeypatch.setenv("HVDLITE_GUARD_STEPS", "often")
    with pytest.raises(ValueError, match="HVDLITE_GUARD_STEPS is 'often': expected a whole"):
        hvd.DistributedTrainer(make_net().collect_params(), "sgd")
