"""Allreduce and broadcast of row_sparse arrays, and training with sparse gradients."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from nets import set_weights, weights
from optimizers import BOTH, make_trainer, plain_trainer
from trained import assert_equal_on_all_ranks
from versions import no_sparse_gluon

import hvdlite as hvd
from hvdlite.mxnet.sparse import allreduce_rows, broadcast_rows
from hvdlite.numpy import Average, Sum

HEIGHT = 23


def rows_of(rank: int, case: str) -> list:
    """Return the row numbers of a rank's array."""
    random = np.random.RandomState(rank)
    return {
        "some": sorted(random.choice(HEIGHT, 5, replace=False)),
        "all": list(range(HEIGHT)),
        "none on rank 0": [] if rank == 0 else [rank, HEIGHT - 1],
        "none anywhere": [],
        "unsorted, twice": [7, 2, 7, rank],
        "each its own": [HEIGHT - 1 - rank],
    }[case]


def sparse_of(rank: int, case: str, dtype: str = "float32", columns=(3,)):
    """Return a row_sparse array of whole numbers, and the equal dense array.

    If the row_sparse array has a row twice, the dense array has the sum of the two rows.
    """
    rows = rows_of(rank, case)
    values = np.random.RandomState(7 + rank).randint(-8, 9, (len(rows), *columns)).astype(dtype)
    dense = np.zeros((HEIGHT, *columns), "float64")
    np.add.at(dense, rows, values)
    array = mx.nd.sparse.row_sparse_array(
        (values, np.array(rows, "int64")), shape=(HEIGHT, *columns), dtype=dtype
    )
    return array, dense


CASES = ("some", "all", "none on rank 0", "none anywhere", "unsorted, twice", "each its own")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("op", [Sum, Average], ids=["sum", "average"])
def test_a_sum_of_sparse_arrays_has_the_rows_of_all_ranks(case, op, rank, size):
    array, _ = sparse_of(rank, case)
    result = allreduce_rows([array], "x", op)
    total = sum(sparse_of(r, case)[1] for r in range(size)) / (size if op == Average else 1)
    expected = sorted({row for r in range(size) for row in rows_of(r, case)})
    assert (result.stype, result.shape, result.dtype) == ("row_sparse", array.shape, array.dtype)
    assert result.indices.asnumpy().tolist() == expected
    np.testing.assert_allclose(result.asnumpy(), total, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("columns", [(), (1,), (2, 3, 2)], ids=str)
def test_sparse_rows_of_every_dtype_and_shape_are_summed(dtype, columns, rank, size):
    array, _ = sparse_of(rank, "some", dtype, columns)
    result = allreduce_rows([array], "x")
    assert result.dtype == np.dtype(dtype)
    total = sum(sparse_of(r, "some", dtype, columns)[1] for r in range(size))
    np.testing.assert_array_equal(result.asnumpy(), total)


def test_a_float16_sum_of_sparse_rows_is_rounded_once(rank, size):
    """In float16 2048 + 1 is 2048, so only a sum in float32 contains the ones."""
    rows = [0] * (2 if rank == 0 else 1)
    values = np.array([[2048.0], [1.0]][: len(rows)] if rank == 0 else [[1.0]], "float16")
    array = mx.nd.sparse.row_sparse_array((values, rows), shape=(2, 1), dtype="float16")
    expected = np.float16(2048 + size)
    assert allreduce_rows([array], "x").asnumpy()[0, 0] == expected


def test_several_sparse_arrays_of_one_rank_are_added_up(rank, size):
    arrays = [sparse_of(rank, "some")[0], sparse_of(rank, "each its own")[0]]
    total = sum(sparse_of(r, c)[1] for r in range(size) for c in ("some", "each its own"))
    np.testing.assert_array_equal(allreduce_rows(arrays, "x").asnumpy(), total)


@pytest.mark.parametrize("root", [0, -1], ids=["first", "last"])
def test_a_sparse_broadcast_gives_all_ranks_the_rows_of_the_root(root, rank, size):
    root %= size
    array, _ = sparse_of(rank, "some")
    result = broadcast_rows(array, root, "x")
    assert result.indices.asnumpy().tolist() == rows_of(root, "some")
    np.testing.assert_array_equal(result.asnumpy(), sparse_of(root, "some")[1])
    with pytest.raises(ValueError, match=f"root_rank is {size}: expected 0 to {size - 1}"):
        broadcast_rows(array, size, "x")


def test_wrong_sparse_arrays_are_refused_before_other_ranks_wait():
    with pytest.raises(ValueError, match="'x' has storage type csr: expected row_sparse"):
        allreduce_rows([mx.nd.ones((2, 2)).tostype("csr")], "x")
    sparse = mx.nd.ones((2, 2)).tostype("row_sparse")
    with pytest.raises(ValueError, match=r"'x' has the shapes \(2, 2\), \(3, 2\)"):
        allreduce_rows([sparse, mx.nd.ones((3, 2)).tostype("row_sparse")], "x")
    for op in (hvd.Adasum, hvd.Max):
        with pytest.raises(ValueError, match="'x' is row_sparse: expected op Sum or Average"):
            allreduce_rows([sparse], "x", op)


def test_ranks_with_sparse_arrays_of_different_shapes_get_an_error(rank, size, several):
    last = rank == 1
    for shape, text in ((4 + last, 2), "number of rows.*rank 1: 5"), ((4, 2 + last), "shape"):
        with pytest.raises(hvd.HvdliteError, match=f"disagree on the {text}"):
            allreduce_rows([mx.nd.ones(shape).tostype("row_sparse")], "x")
    np.testing.assert_array_equal(
        allreduce_rows([mx.nd.ones((4, 2)).tostype("row_sparse")], "x").asnumpy(), size
    )


# ---- training ----


def embedding_net(sparse: bool = True):
    net = gluon.nn.HybridSequential()
    net.add(
        gluon.nn.Embedding(HEIGHT, 4, sparse_grad=sparse),
        gluon.nn.Dense(3, in_units=8, activation="tanh"),
        gluon.nn.Embedding(HEIGHT, 2, sparse_grad=sparse),
    )
    net.initialize()
    set_weights(net, 1)
    return net


def words_of(rank: int, step: int) -> np.ndarray:
    """Return a batch of words. Rank 0 uses only words 0 to 2, so it lacks some gradients' rows."""
    random = np.random.RandomState(100 * step + rank)
    return random.randint(0, 3 if rank == 0 else HEIGHT, (6, 2))


def train(net, trainer, joined: bool, steps: int = 4) -> dict:
    ranks = range(hvd.size()) if joined else [hvd.rank()]
    for step in range(steps):
        words = mx.nd.array(np.concatenate([words_of(r, step) for r in ranks]))
        with autograd.record():
            hidden = net[1](net[0](words))
            loss = hidden.sum(axis=1) * net[2](words).sum(axis=(1, 2))
        loss.backward()
        trainer.step(len(words))
    return weights(net)


def optimizer(name: str):
    options = {"sgd": {"momentum": 0.9, "wd": 0.01}, "adam": {}}[name]
    return mx.optimizer.create(name, learning_rate=0.02, **options)


@no_sparse_gluon
@pytest.mark.parametrize(
    "kind, as_dense",
    [*((kind, dense) for kind in BOTH for dense in (False, True)), ("on store", None)],
)
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_sparse_training_equals_one_process_on_the_joined_batch(kind, name, as_dense, parity):
    """Updates are lazy, as in one process: rows without a gradient keep their momentum."""
    net, alone = embedding_net(), embedding_net()
    options = {} if as_dense is None else {"sparse_as_dense": as_dense}
    ours = make_trainer(kind, net.collect_params(), optimizer(name), **options)
    trained = train(net, ours, joined=False)
    assert net[0].weight.grad().stype == "row_sparse"
    expected = train(alone, plain_trainer(alone, optimizer(name)), joined=True)
    assert_equal_on_all_ranks(trained)
    sent = "as dense" if as_dense else "as rows"
    parity(f"Embedding, {kind}, {name}, {sent}", trained, expected, 2e-5)


@no_sparse_gluon
def test_an_averaged_sparse_gradient_has_only_rows_that_a_rank_used(rank, size):
    net = gluon.nn.Embedding(HEIGHT, 2, sparse_grad=True)
    net.initialize()
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd")
    with autograd.record():
        net(mx.nd.array([rank, 9])).sum().backward()
    trainer.allreduce_grads()
    assert net.weight.grad().indices.asnumpy().tolist() == [*range(size), 9]


@no_sparse_gluon
def test_a_dense_gradient_on_one_rank_is_an_error_on_all_ranks(rank, several):
    net = gluon.nn.Embedding(5, 2, sparse_grad=rank == 0)
    net.initialize()
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd")
    with autograd.record():
        net(mx.nd.array([1])).sum().backward()
    words = r"rank 0: .*row_sparse gradient.*rank 1: .*grad_req write\)"
    with pytest.raises(hvd.HvdliteError, match=words):
        trainer.step(1)


@no_sparse_gluon
def test_sparse_layers_that_ranks_number_differently_are_an_error(rank, several):
    """Without the error, ranks would wait for each other's embeddings."""
    with mx.name.NameManager():  # in this block, Gluon's names count from 0
        for _ in range(9 if rank == 0 else 0):
            gluon.nn.Embedding(2, 1)
        net = gluon.nn.Sequential()
        net.add(*(gluon.nn.Embedding(5, 2, sparse_grad=True) for _ in range(2)))
    net.initialize()
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd")
    with autograd.record():
        net[0](mx.nd.array([1])).sum().backward()
    with pytest.raises(hvd.HvdliteError, match="order of row_sparse gradients"):
        trainer.step(1, ignore_stale_grad=True)
