"""Module, BucketingModule and checkpoints with the kvstore dist_sync_mpi."""

import logging

import mxnet as mx
import numpy as np
import pytest
from trained import assert_close, assert_equal_on_all_ranks
from versions import no_module

import hvdlite as hvd

pytestmark = no_module

ROWS, STEPS, CLASSES = 6, 4, 3  # ROWS is per rank and step
BOUND = 1e-4  # bound of the relative difference from the weights of one process
on_store = pytest.mark.parametrize("on_store", [None, "0", "1"], ids=["default", "own", "on store"])


@pytest.fixture
def update_on_kvstore(on_store, monkeypatch):
    """Set the environment variable by which MXNet chooses where a Module updates."""
    monkeypatch.delenv("MXNET_UPDATE_ON_KVSTORE", raising=False)
    if on_store is not None:
        monkeypatch.setenv("MXNET_UPDATE_ON_KVSTORE", on_store)
    return on_store == "1"


def lenet():
    """Return a small net with average pooling: the gradient of max pooling is discontinuous."""
    x = mx.sym.var("data")
    x = mx.sym.Convolution(x, num_filter=3, kernel=(3, 3), name="conv")
    x = mx.sym.Activation(x, act_type="tanh")
    x = mx.sym.Pooling(x, pool_type="avg", kernel=(2, 2), stride=(2, 2))
    x = mx.sym.FullyConnected(x, num_hidden=CLASSES, name="fc")
    return mx.sym.SoftmaxOutput(x, mx.sym.var("softmax_label"), name="softmax")


def all_images() -> tuple:
    """Return the images and labels of all ranks; its batch i consists of all ranks' batches i."""
    random = np.random.RandomState(5)
    n = ROWS * STEPS * hvd.size()
    return random.randn(n, 1, 8, 8).astype("float32"), random.randint(0, CLASSES, n)


def iterator(joined: bool):
    images, labels = all_images()
    if joined:
        return mx.io.NDArrayIter(images, labels, ROWS * hvd.size())
    own = np.arange(len(labels)) % (ROWS * hvd.size()) // ROWS == hvd.rank()
    return mx.io.NDArrayIter(images[own], labels[own], ROWS)


def start_weights(seed: int = 0) -> dict:
    random = np.random.RandomState(seed)
    shapes = {"conv_weight": (3, 1, 3, 3), "conv_bias": (3,), "fc_weight": (3, 27), "fc_bias": (3,)}
    return {n: mx.nd.array(random.uniform(-0.4, 0.4, s)) for n, s in shapes.items()}


def weights_of(module) -> dict:
    return {name: array.asnumpy() for name, array in module.get_params()[0].items()}


def fit(kvstore, joined=False, seed=0, contexts=None, optimizer="sgd", **more):
    module = mx.mod.Module(lenet(), context=contexts or [mx.cpu()])
    more.setdefault("optimizer_params", {"learning_rate": 0.3, "momentum": 0.9, "wd": 0.01})
    if optimizer != "sgd":
        more["optimizer_params"] = {"learning_rate": 0.01}
    more = {"num_epoch": 2, **more}
    weights = start_weights(seed)
    module.fit(iterator(joined), kvstore=kvstore, optimizer=optimizer, arg_params=weights, **more)
    return module


@pytest.mark.parametrize(
    "store, optimizer, contexts",
    [
        ("dist_sync_mpi", "sgd", 1),
        ("dist_sync_mpi", "adam", 1),
        (mx.kv.create, "sgd", 1),
        ("dist_sync_mpi", "sgd", 2),
        ("dist_sync_mpi", "sgd", 3),
    ],
    ids=["name", "adam", "object", "2 contexts", "3 contexts"],
)
@on_store
def test_module_fit_gives_the_weights_of_one_process(
    store, optimizer, contexts, update_on_kvstore, parity
):
    """All ranks start from rank 0's weights, though each rank passes different weights."""
    store = store("horovod") if callable(store) else store
    contexts = [mx.cpu(i) for i in range(contexts)]
    module = fit(store, seed=hvd.rank(), optimizer=optimizer, contexts=contexts)
    assert module._update_on_kvstore == update_on_kvstore
    trained = weights_of(module)
    expected = weights_of(fit(None, joined=True, optimizer=optimizer))
    start = {name: array.asnumpy() for name, array in start_weights().items()}
    with pytest.raises(AssertionError):
        assert_close(expected, start, tolerance=1e-2)
    parity(f"Module.fit, {optimizer}, {len(contexts)} contexts", trained, expected, BOUND)
    assert_equal_on_all_ranks(trained)


@on_store
@pytest.mark.filterwarnings("ignore:Parameters already initialized")
def test_a_module_resumes_from_a_checkpoint(update_on_kvstore, tmp_path_factory, parity):
    """Each rank saves after 2 of 4 epochs and resumes with and without hvdlite."""
    folder = tmp_path_factory.mktemp("checkpoint")
    prefix = str(folder / f"rank{hvd.rank()}")
    module = fit("dist_sync_mpi")
    module.save_checkpoint(prefix, 2, save_optimizer_states=True)
    resumed = {}
    for kvstore in ("dist_sync_mpi", None):
        module = mx.mod.Module.load(prefix, 2, load_optimizer_states=kvstore is not None)
        arguments, _ = mx.model.load_checkpoint(prefix, 2)[1:]
        assert_equal_on_all_ranks({n: a.asnumpy() for n, a in arguments.items()})
        module.fit(
            iterator(joined=kvstore is None), num_epoch=4, begin_epoch=2, kvstore=kvstore,
            optimizer_params={"learning_rate": 0.3, "momentum": 0.9, "wd": 0.01},
        )  # fmt: skip
        resumed[kvstore] = weights_of(module)
    straight = weights_of(fit(None, joined=True, num_epoch=4))
    parity("Module, resumed", resumed["dist_sync_mpi"], straight, BOUND)
    with pytest.raises(AssertionError):  # without the saved momentum the weights differ
        assert_close(resumed[None], straight, tolerance=1e-3)


def bucket(length: int):
    """Return a model of sequences of `length` words that sums the words and has two classes."""
    words = mx.sym.var("data")
    x = mx.sym.Embedding(words, input_dim=11, output_dim=4, name="embed")
    x = mx.sym.FullyConnected(mx.sym.sum(x, axis=1), num_hidden=2, name="fc")
    out = mx.sym.SoftmaxOutput(x, mx.sym.var("softmax_label"), name="softmax")
    return out, ("data",), ("softmax_label",)


def bucket_batch(step: int, rank: int):
    """Return a batch. All ranks' batches of a step have one length, so that they can be joined."""
    random = np.random.RandomState(10 * step + rank)
    length = (3, 5, 4)[step % 3]
    return random.randint(0, 11, (ROWS, length)), random.randint(0, 2, ROWS), length


def train_buckets(kvstore, ranks) -> dict:
    module = mx.mod.BucketingModule(bucket, default_bucket_key=5)
    rows = ROWS * len(ranks)
    module.bind([("data", (rows, 5))], [("softmax_label", (rows,))])
    mx.random.seed(ranks[0])
    module.init_params(mx.init.Uniform(0.5))
    module.init_optimizer(kvstore=kvstore, optimizer_params={"learning_rate": 0.2, "momentum": 0.9})
    for step in range(7):
        parts = [bucket_batch(step, rank) for rank in ranks]
        words, labels = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        module.forward_backward(
            mx.io.DataBatch(
                [mx.nd.array(words)],
                [mx.nd.array(labels)],
                bucket_key=parts[0][2],
                provide_data=[("data", words.shape)],
                provide_label=[("softmax_label", labels.shape)],
            )  # fmt: skip
        )
        module.update()
    return weights_of(module)


@on_store
def test_bucketing_module_trains_as_one_process(update_on_kvstore, rank, size, parity):
    trained = train_buckets("dist_sync_mpi", [rank])
    assert_equal_on_all_ranks(trained)
    expected = train_buckets(None, list(range(size)))
    parity("BucketingModule", trained, expected, BOUND)


def linear_model(stype: str):
    """Return the model of MXNet's example of sparse weights; each input uses few rows of w."""
    x = mx.sym.var("data", stype="csr")
    w = mx.sym.var("w", shape=(12, 2), stype=stype)
    b = mx.sym.var("b", shape=(2,))
    y = mx.sym.broadcast_add(mx.sym.sparse.dot(x, w), b)
    return mx.sym.LinearRegressionOutput(y, mx.sym.var("y"), name="out")


def train_sparse(kvstore, ranks, prepare: bool) -> dict:
    rows = ROWS * len(ranks)
    module = mx.mod.Module(linear_model("row_sparse"), label_names=["y"])
    module.bind([mx.io.DataDesc("data", (rows, 12), layout="NC")], [("y", (rows, 2))])
    random = np.random.RandomState(ranks[0])
    weight = mx.nd.array(random.randn(12, 2)).tostype("row_sparse")
    module.init_params(arg_params={"w": weight, "b": mx.nd.array(random.randn(2))})
    module.init_optimizer(kvstore=kvstore, optimizer_params={"learning_rate": 0.1})
    for step in range(4):
        inputs = []
        for rank in ranks:
            drawn = np.random.RandomState(10 * step + rank).rand(ROWS, 12)
            inputs.append(np.where(drawn > 0.8, drawn, 0))
        x = mx.nd.array(np.concatenate(inputs)).tostype("csr")
        batch = mx.io.DataBatch([x], [mx.nd.ones((rows, 2))])
        if prepare:
            module.prepare(batch, sparse_row_id_fn=lambda b: {"w": b.data[0].indices})
        module.forward_backward(batch)
        module.update()
    return weights_of(module)


@on_store
@pytest.mark.filterwarnings("ignore:Parameters are not updated in the KVStore")
def test_a_module_with_sparse_weights_trains_as_one_process(update_on_kvstore, rank, size, parity):
    """`prepare` fetches the rows of w that a batch uses; hvdlite's store also works without it."""
    expected = train_sparse(None, list(range(size)), prepare=False)
    for prepare in (True, False):
        trained = train_sparse("dist_sync_mpi", [rank], prepare)
        parity("Module, sparse weights", trained, expected, BOUND)
        assert_equal_on_all_ranks(trained)


def test_feed_forward_trains_as_one_process(caplog):
    """FeedForward, MXNet's oldest interface for training, ends with the weights of one process."""
    with caplog.at_level(logging.ERROR), pytest.warns(DeprecationWarning):
        model = mx.model.FeedForward(
            lenet(), num_epoch=2, learning_rate=0.3, momentum=0.9, arg_params=start_weights(),
            numpy_batch_size=ROWS,
        )  # fmt: skip
        model.fit(iterator(joined=False), kvstore="dist_sync_mpi")
    trained = {name: array.asnumpy() for name, array in model.arg_params.items()}
    module = fit(None, joined=True, optimizer_params={"learning_rate": 0.3, "momentum": 0.9})
    assert_close(trained, weights_of(module))
