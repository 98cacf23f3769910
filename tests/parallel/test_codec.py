"""Compressed allreduces: sums bitwise equal to MXNet's, bytes sent, errors, and training.

test_codec_bits.c and test_coll_coded.c test the sums of each codec.
"""

import mxnet as mx
import numpy as np
import pytest
from nets import backward, batch_of, dense_net, train, weights
from optimizers import STORES, every_kind, make_trainer, momentum_sgd, plain_trainer
from trained import assert_close, assert_equal_on_all_ranks

import hvdlite as hvd
from hvdlite.mxnet.compression import from_params
from hvdlite.mxnet.gradients import Reducer

STEPS = 6


def reduced(reducer, values, name, op=hvd.Average) -> np.ndarray:
    with mx.util.np_shape(True):  # needed for empty arrays
        x = mx.nd.array(values)
    return reducer.allreduce_(x, name, op=op).asnumpy()


def gradients_of_all(step: int, n: int) -> list:
    randoms = [np.random.RandomState(1000 * step + r) for r in range(hvd.size())]
    return [random.randn(n).astype("float32") for random in randoms]


def test_2bit_sums_equal_mxnets_bit_by_bit(several):
    """The expected sums are those of a 'device' store of MXNet with one context per rank."""
    store = mx.kv.create("device")
    store.set_gradient_compression({"type": "2bit", "threshold": 0.25})
    store.init("w", mx.nd.zeros((101, 3)))
    reducer = Reducer(hvd.Compression.two_bit(0.25))
    for step in range(STEPS):
        everyone = [g.reshape(101, 3) for g in gradients_of_all(step, 303)]
        store.push("w", [mx.nd.array(g, ctx=mx.cpu(r)) for r, g in enumerate(everyone)])
        expected = mx.nd.empty((101, 3))
        store.pull("w", out=expected)
        own = reduced(reducer, everyone[hvd.rank()], "own", hvd.Sum)
        np.testing.assert_array_equal(own, expected.asnumpy())


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_a_16_bit_average_is_computed_before_it_is_rounded(dtype):
    reducer = Reducer(getattr(hvd.Compression, dtype))
    big = reduced(reducer, np.full(9000, 6e4, "float32"), "big")
    assert np.isfinite(big).all()  # the sum, size * 6e4, overflows float16, but the average fits


@pytest.mark.parametrize("name", ["2bit", "1bit", "topk", "fp16", "bf16"])
def test_compressed_averages_leave_out_joined_ranks(name, size):
    """Rank r has r + 1 batches; each average is over the ranks that have not joined."""
    reducer, n = Reducer(from_params({"type": name})), 40
    for step in range(hvd.rank() + 1):
        x = mx.nd.array(np.where(np.arange(n) % 2, -2, 2))
        mean = reducer.allreduce_(x, "joined").asnumpy()
        expected = {"2bit": 0.5, "1bit": 1, "topk": 2 * (step == 0)}.get(name, 2)
        assert mean[0] == expected
    assert hvd.join() == size - 1


def sent(reducer, n: int) -> tuple:
    """Return how many bytes this rank sends for n values through MPI and through shared memory."""
    before = hvd.stats()
    reduced(reducer, np.ones(n, "float32"), "counted")
    after = hvd.stats()
    assert after["tensors"] == before["tensors"] + 1
    assert after["batches"] == before["batches"] + 1
    return tuple(after[key] - before[key] for key in ("bytes_sent_network", "bytes_sent_window"))


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_a_16_bit_cast_sends_half_as_many_bytes(dtype, several):
    n = 160_000
    half = Reducer(getattr(hvd.Compression, dtype))
    assert sum(sent(half, n)) == pytest.approx(sum(sent(Reducer(), n)) / 2, rel=1e-3)


@pytest.mark.parametrize(
    "first, second, texts",
    [
        (hvd.Compression.two_bit(0.5), hvd.Compression.none, "2bit(0.5) none"),
        (hvd.Compression.two_bit(0.5), hvd.Compression.two_bit(0.1), "2bit(0.5) 2bit(0.1)"),
        (hvd.Compression.one_bit(), hvd.Compression.top_k(0.5), "1bit(0) topk(0.5)"),
        (hvd.Compression.fp16, hvd.Compression.bf16, "fp16 bf16"),
    ],
    ids=["none", "threshold", "codec", "cast"],
)
def test_ranks_that_compress_differently_get_an_error(first, second, texts, several, size):
    own, theirs = texts.split()
    x = mx.nd.ones((40,))
    with pytest.raises((mx.MXNetError, hvd.HvdliteError)) as caught:
        Reducer(first if hvd.rank() == 0 else second).allreduce_(x, "w").wait_to_read()
    others = {2: "rank 1", 3: "ranks 1, 2"}.get(size, f"ranks 1-{size - 1}")
    expected = f"tensor 'allreduce.w': ranks disagree on the compression: rank 0: {own}; {others}: "
    assert f"{expected}{theirs}. Submit the same compression on every rank." in str(caught.value)
    assert (reduced(Reducer(), np.ones(40), "w") == 1).all()


def test_compression_by_casts_leaves_other_dtypes_unchanged(size):
    x = mx.nd.full((3,), 2**-30, dtype="float64")
    Reducer(hvd.Compression.bf16).allreduce_(x, "w", op=hvd.Sum)
    assert (x.asnumpy() == size * 2**-30).all()


def test_fp16_outside_of_a_trainer_leaves_other_dtypes_unchanged():
    for dtype in ("float16", "int32", "uint8"):
        x = mx.nd.ones((2,), dtype=dtype)
        sent, context = hvd.Compression.fp16.compress(x)
        assert sent is x
        assert hvd.Compression.fp16.decompress(sent, context) is x
    x = mx.nd.ones((2,), dtype="float64")
    sent, context = hvd.Compression.fp16.compress(x)
    assert sent.dtype == np.float16
    assert hvd.Compression.fp16.decompress(sent, context).dtype == np.float64


def test_a_residual_becomes_zero_when_the_size_of_its_tensor_changes():
    reducer = Reducer(hvd.Compression.two_bit(0.5))
    for n in (10, 20, 0):
        fresh = Reducer(hvd.Compression.two_bit(0.5))
        for step in range(2):
            own = gradients_of_all(step, n)[hvd.rank()]
            expected = reduced(fresh, own, f"fresh{n}")
            np.testing.assert_array_equal(reduced(reducer, own, "w"), expected)


@pytest.mark.parametrize(
    "params, expected",
    [
        ({"type": "none"}, hvd.Compression.none),
        ({"type": "fp16"}, hvd.Compression.fp16),
        ({"type": "bf16"}, hvd.Compression.bf16),
        ({"type": "2bit"}, hvd.Compression.two_bit(0.5)),
        ({"type": "2bit", "threshold": 2}, hvd.Compression.two_bit(2.0)),
        ({"type": "2bit", "threshold": "0.25"}, hvd.Compression.two_bit(0.25)),
        ({"type": "1bit", "threshold": 0.25}, hvd.Compression.one_bit(0.25)),
        ({"type": "topk", "ratio": 0.05}, hvd.Compression.top_k(0.05)),
    ],
    ids=str,
)
def test_mxnets_compression_params_select_the_compression(params, expected):
    assert from_params(params) == expected


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: from_params({"type": "3bit"}), "'3bit'.*none, fp16, bf16, 2bit, 1bit, topk"),
        (lambda: from_params({}), "compression type None: expected one of none"),
        (lambda: from_params({"type": "2bit", "ratio": 1}), "type '2bit' with .*ratio"),
        (lambda: from_params({"type": "2bit", "threshold": 0}), "threshold=0.0.*above 0"),
        (lambda: hvd.Compression.two_bit(-1), "two_bit.threshold=-1.: expected .* above 0"),
        (lambda: hvd.Compression.two_bit(float("nan")), "above 0"),
        (lambda: hvd.Compression.top_k(0), "top_k.ratio=0.: expected a ratio above 0"),
        (lambda: hvd.Compression.top_k(1.01), "at most 1"),
        (lambda: Reducer(hvd.Compression.two_bit), r"a call of \.two_bit\(\)"),
        (lambda: Reducer("2bit"), "compression is '2bit': expected"),
    ],
)
def test_a_wrong_compression_is_refused(make, text):
    with pytest.raises(ValueError, match=text):
        make()


# ---- training with compressed gradients ----


def trained_by_sums(compression, steps: int) -> dict:
    """Return the weights of a plain trainer whose gradients a Reducer averages one by one."""
    net, reducer = dense_net(), Reducer(compression)
    trainer = plain_trainer(net, momentum_sgd())
    for step in range(steps):
        backward(net, batch_of(hvd.rank(), step))
        for name, param in net._collect_params_with_prefix().items():
            reducer.allreduce_(param.grad(), name)
        trainer.step(4)
    return weights(net)


@every_kind
@pytest.mark.parametrize("name", ["2bit", "1bit", "topk"])
def test_compressed_training_equals_training_on_the_compressed_sums(kind, name):
    """The weights are bitwise equal, except with a store, which divides the sum later.

    MXNet's own dist_sync can't be compared: 'Compression not supported with PushPull'.
    """
    net, compression = dense_net(), from_params({"type": name})
    how = {"compression_params": {"type": name}} if kind in STORES else {"compression": compression}
    trained = train(net, make_trainer(kind, net.collect_params(), momentum_sgd(), **how), steps=6)
    assert_equal_on_all_ranks(trained)
    expected = trained_by_sums(compression, steps=6)
    assert_close(trained, expected, 1e-6 if kind in STORES else 0)
    if kind == "trainer":  # compression applies to gradients in shared memory, too
        hvd.share_gradients((net := dense_net()).collect_params().values())
        shared = make_trainer(kind, net.collect_params(), momentum_sgd(), **how)
        assert_close(train(net, shared, steps=6), expected, 0)


CODECS = [hvd.Compression.two_bit(0.5), hvd.Compression.one_bit(), hvd.Compression.top_k(0.1)]


@pytest.mark.parametrize("codec, bits", [*zip(CODECS, [2, 1, 6.4])], ids=str)
def test_a_codec_sends_as_few_bytes_as_documented(codec, bits, several, size):
    """Two ranks exchange encoded gradients, through MPI or shared memory. If there are more, each
    rank sums one part of the gradients and sends the sum, one byte per value, to the others."""
    n = 160_000
    words = n * bits / 8 + 4
    plain, compressed = sent(Reducer(), n), sent(Reducer(codec), n)
    by_mpi = plain[0] > 0
    # each of the two phases of a ring allreduce sends size - 1 chunks per rank
    times = 2 * (size - 1) / size if by_mpi else 1
    assert sum(plain) == max(plain) == pytest.approx(4 * n * times, rel=1e-3)
    if size > 2 and bits < 4:
        others = (size - 1) / size
        assert compressed == (pytest.approx(others * (words + n), rel=1e-3), 0)
    else:
        assert compressed == ((words * (size - 1), 0) if by_mpi else (0, words))
