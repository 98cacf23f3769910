"""SyncBatchNorm on each rank's batch equals BatchNorm on the concatenated batches of all ranks."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from numbers_of_ranks import check_far_from_zero
from trained import assert_equal_on_all_ranks

import hvdlite as hvd

CASES = {
    # the number of channels is known only at the first forward
    "images": ((5, 6), 1, {"in_channels": 0}),
    "channels last": ((5, 6), -1, {}),
    "sequences": ((7,), 1, {"scale": False}),
    "rows": ((), 1, {"center": False}),
    "volumes": ((3, 2, 4), 1, {"scale": False, "center": False}),
    "NumPy's arrays": ((4, 4), 1, {}),
}


def rows_of(rank: int, uneven: bool) -> int:
    return 2 + (3 * rank if uneven else 0)


def data_of(rank: int, step: int, inner, axis: int, uneven: bool, channels: int = 3):
    shape = (rows_of(rank, uneven), channels, *inner)
    values = np.random.RandomState(10 * step + rank).normal(1, 2, shape).astype("float32")
    return np.moveaxis(values, 1, axis)


def array(values):
    return (mx.np if mx.util.is_np_array() else mx.nd).array(values)


def make_pair(**options):
    options = {"in_channels": 3, "momentum": 0.7, **options}
    blocks = hvd.SyncBatchNorm(**options), gluon.nn.BatchNorm(**options)
    for block in blocks:
        block.initialize()
        block.gamma.set_data(array([0.5, 1.5, -2.0]))
        block.beta.set_data(array([0.1, -0.2, 0.3]))
    return blocks


def forward_and_backward(block, values, upstream):
    x = array(values)
    x.attach_grad()
    with autograd.record():
        y = block(x)
        loss = (y * array(upstream)).sum()
    loss.backward()
    assert type(y) is type(x)
    return y.asnumpy(), x.grad.asnumpy()


def own_part(values, uneven: bool):
    starts = np.cumsum([0, *(rows_of(r, uneven) for r in range(hvd.size()))])
    return values[starts[hvd.rank()] : starts[hvd.rank() + 1]]


def check_joined_batch(inner, axis, options, uneven, hybridize, rank, size):
    ours, twin = make_pair(axis=axis, **options)
    if hybridize:
        ours.hybridize(static_alloc=True, static_shape=True)
    for step in range(3):
        parts = [data_of(r, step, inner, axis, uneven) for r in range(size)]
        joined = np.concatenate(parts)
        upstream = np.random.RandomState(step).randn(*joined.shape).astype("float32")
        y, dx = forward_and_backward(twin, joined, upstream)
        own_y, own_dx = forward_and_backward(ours, parts[rank], own_part(upstream, uneven))
        np.testing.assert_allclose(own_y, own_part(y, uneven), rtol=1e-4, atol=2e-5)
        np.testing.assert_allclose(own_dx, own_part(dx, uneven), rtol=1e-3, atol=5e-5)
        trained = [n for n in ("gamma", "beta") if getattr(twin, n).grad_req != "null"]
        for name in trained:  # these gradients are of this rank's rows only
            total = hvd.allreduce(getattr(ours, name).grad(), op=hvd.Sum).asnumpy()
            expected = getattr(twin, name).grad().asnumpy()
            np.testing.assert_allclose(total, expected, rtol=1e-3, atol=1e-4, err_msg=name)
        for name in ("running_mean", "running_var"):
            got, expected = (getattr(b, name).data().asnumpy() for b in (ours, twin))
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6, err_msg=name)
            assert_equal_on_all_ranks({name: got})
    x = array(data_of(rank, 9, inner, axis, uneven))
    np.testing.assert_allclose(ours(x).asnumpy(), twin(x).asnumpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("uneven", [False, True], ids=["even", "uneven"])
@pytest.mark.parametrize("hybridize", [False, True], ids=["imperative", "hybridized"])
def test_sync_batch_norm_equals_batch_norm_on_the_joined_batch(case, uneven, hybridize, rank, size):
    with mx.util.np_shape(case == "NumPy's arrays"), mx.util.np_array(case == "NumPy's arrays"):
        check_joined_batch(*CASES[case], uneven, hybridize, rank, size)


def test_sync_batch_norm_is_accurate_far_from_zero():
    def normalize(x, dy):
        block = hvd.SyncBatchNorm(axis=-1, in_channels=3)
        block.initialize()
        return forward_and_backward(block, x, dy)

    check_far_from_zero(normalize)


@pytest.mark.parametrize("mode", ["inference", "recorded for inference", "use_global_stats"])
def test_inference_with_sync_batch_norm_does_not_wait_for_other_ranks(mode, rank):
    """Only rank 0 validates; its results and gradients are those of BatchNorm."""
    ours, twin = make_pair(use_global_stats=mode == "use_global_stats")
    if rank == 0:
        for block in (ours, twin):
            block.running_mean.set_data(mx.nd.array([1.0, 2.0, 3.0]))
            block.running_var.set_data(mx.nd.array([4.0, 1.0, 9.0]))
        results = []
        for block in (ours, twin):
            x = mx.nd.array(data_of(0, 0, (4,), 1, False))
            x.attach_grad()
            if mode == "inference":
                results.append([block(x)])
                continue
            with autograd.record(train_mode=mode == "use_global_stats"):
                y = block(x)
                loss = (y**2).sum()
            loss.backward(train_mode=mode == "use_global_stats")
            results.append([y, x.grad, block.gamma.grad(), block.beta.grad()])
        for got, expected in zip(*results):
            np.testing.assert_allclose(got.asnumpy(), expected.asnumpy(), rtol=1e-4, atol=1e-4)
    hvd.allgather_object("the others did not wait for it")


@pytest.mark.parametrize("hybridize", [False, True], ids=["imperative", "hybridized"])
@pytest.mark.parametrize("attached", [False, True], ids=["data", "made"])
def test_two_calls_of_sync_batch_norm_in_one_forward_do_not_mix(hybridize, attached, rank, size):
    """A GAN calls its discriminator twice, with real and with fake data."""
    ours, twin = make_pair()
    if hybridize:
        ours.hybridize()
    running = np.ones(3)
    for step in range(2):
        parts = [[data_of(r, 2 * step + i, (4,), 1, True) for r in range(size)] for i in range(2)]
        for block, values in (
            (ours, [of[rank] for of in parts]),
            (twin, [np.concatenate(of) for of in parts]),
        ):
            inputs = [mx.nd.array(v) for v in values]
            for x in inputs if attached else ():
                x.attach_grad()
            with autograd.record():
                real, fake = map(block, inputs)
                loss = (real**3).sum() - (fake**2 * 5).sum()
            loss.backward()
        for name in ("gamma", "beta"):
            total = hvd.allreduce(getattr(ours, name).grad(), op=hvd.Sum).asnumpy()
            expected = getattr(twin, name).grad().asnumpy()
            np.testing.assert_allclose(total, expected, rtol=1e-3, atol=1e-3, err_msg=name)
        for of in parts:  # the running variance is updated in the order of the calls
            running = 0.7 * running + 0.3 * np.concatenate(of).var((0, 2))
        np.testing.assert_allclose(ours.running_var.data().asnumpy(), running, rtol=1e-5)


def test_sync_batch_norm_in_float16_is_close_to_the_joined_batch(rank, size):
    ours, twin = make_pair()
    for block in (ours, twin):
        block.cast("float16")
    parts = [data_of(r, 0, (4, 4), 1, False).astype("float16") for r in range(size)]
    results = []
    for block, values in ((ours, parts[rank]), (twin, np.concatenate(parts))):
        with autograd.train_mode():
            results.append(block(mx.nd.array(values, dtype="float16")).asnumpy())
    assert results[0].dtype == np.float16
    np.testing.assert_allclose(results[0], own_part(results[1], False), rtol=1e-2, atol=1e-2)


def test_a_sync_batch_norm_that_only_one_rank_has_made_is_an_error(rank, several):
    """Without the error, ranks would wait for each other's blocks."""
    blocks = [hvd.SyncBatchNorm(in_channels=3) for _ in range(1 + (rank == 1))]
    blocks[-1].initialize()
    text = "ranks disagree on its number: .*rank 1: sync_"
    with pytest.raises(hvd.HvdliteError, match=text), autograd.record():
        blocks[-1](mx.nd.ones((2, 3)))
    for _ in range(rank != 1):
        hvd.SyncBatchNorm()  # hvdlite compares layers' numbers: all ranks must make equally many


def test_sync_batch_norm_refuses_several_contexts():
    block = hvd.SyncBatchNorm(in_channels=3)
    block.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    with pytest.raises(ValueError, match="is on 2 contexts: expected one"):
        block(mx.nd.ones((2, 3)))


def test_sync_batch_norms_with_different_channels_get_an_error(rank, several, asynchronous):
    block = hvd.SyncBatchNorm(in_channels=3 + (rank == 0))
    block.initialize()
    with autograd.record():
        y = block(mx.nd.ones((2, 3 + (rank == 0))))
    with pytest.raises(mx.MXNetError, match="sync_batch_norm.*ranks disagree on the shape"):
        y.wait_to_read()
