"""broadcast_parameters() of dicts, ParameterDicts and parameters that are not initialized yet."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from nets import batch_of, dense_net, weights
from trained import assert_equal_on_all_ranks
from versions import no_sparse_gluon

import hvdlite as hvd


@pytest.mark.parametrize(
    "params_of",
    [
        lambda net: net.collect_params(),
        lambda net: dict(net.collect_params()),
        lambda net: net._collect_params_with_prefix(),
        lambda net: {n: p.data() for n, p in net.collect_params().items()},
    ],
    ids=["ParameterDict", "dict", "structural names", "NDArrays"],
)
def test_parameters_of_each_kind_are_broadcast_from_each_root(params_of, rank, size):
    for root in range(size):
        net = dense_net(seed=rank + 1)
        hvd.broadcast_parameters(params_of(net), root_rank=root)
        expected = weights(dense_net(seed=root + 1))
        for name, value in weights(net).items():
            np.testing.assert_array_equal(value, expected[name])


@pytest.mark.parametrize("names", [range(12), [(0, "w"), (0, "b")], [1, "1b"]], ids=str)
def test_broadcast_parameters_takes_numbers_as_keys(names, rank, size):
    arrays = {name: mx.nd.full((2,), 100 * rank + i) for i, name in enumerate(names)}
    hvd.broadcast_parameters(arrays, root_rank=size - 1)
    for i, name in enumerate(names):
        assert (arrays[name].asnumpy() == 100 * (size - 1) + i).all()


def test_deferred_parameters_are_broadcast_at_the_first_forward(rank, size):
    """Gluon knows the shapes of deferred parameters only at the first forward."""
    mx.random.seed(rank)
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(5, in_units=6), gluon.nn.Dense(4), gluon.nn.BatchNorm())
    net.initialize(mx.init.Uniform())
    hvd.broadcast_parameters(net.collect_params(), root_rank=size - 1)
    net(mx.nd.array(batch_of(rank)))
    assert_equal_on_all_ranks(weights(net))
    assert np.abs(weights(net)["1.weight"]).max() > 0


def test_initializing_a_parameter_again_on_one_rank_broadcasts_nothing(rank):
    """A broadcast would wait for the other ranks forever."""
    net = gluon.nn.Dense(4)
    net.initialize()
    hvd.broadcast_parameters(net.collect_params())
    net(mx.nd.array(batch_of(rank)))
    if rank == 0:
        net.initialize(mx.init.One(), force_reinit=True)
        net(mx.nd.array(batch_of(rank)))
        assert (net.weight.data().asnumpy() == 1).all()


def test_parameters_of_mixed_dtypes_and_shapes_are_broadcast(rank, size):
    with mx.util.np_shape(True):
        params = {
            "half": mx.nd.full((3,), rank, dtype="float16"),
            "count": mx.nd.full((2,), rank, dtype="int64"),
            "scalar": mx.np.array(float(rank)),
            "none": mx.np.zeros((0, 2)),
        }
        hvd.broadcast_parameters(params, root_rank=size - 1)
        assert (params["half"].asnumpy() == size - 1).all()
        assert (params["count"].asnumpy() == size - 1).all()
        assert params["scalar"].asnumpy() == size - 1


@no_sparse_gluon
def test_row_sparse_weights_are_broadcast(rank, size):
    param = gluon.Parameter("w", shape=(5, 2), stype="row_sparse", grad_stype="row_sparse")
    param.initialize(mx.init.Constant(rank + 1), ctx=[mx.cpu(0), mx.cpu(1)])
    rows = mx.nd.sparse.row_sparse_array(([[1 + rank, 2]], [rank]), shape=(size, 2))
    hvd.broadcast_parameters({"w": param, "rows": rows}, root_rank=size - 1)
    for data in param._data:
        np.testing.assert_array_equal(data.asnumpy(), np.full((5, 2), size))
    assert rows.indices.asnumpy().tolist() == [size - 1]
    assert rows.data.asnumpy().tolist() == [[size, 2]]


def test_a_parameter_dense_on_one_rank_and_sparse_on_another_is_an_error(rank, several):
    array = mx.nd.ones((2, 2)).tostype("default" if rank == 0 else "row_sparse")
    with pytest.raises(hvd.HvdliteError, match="rank 0: w .*default.*; rank 1: w .*row_sparse"):
        hvd.broadcast_parameters({"w": array})


def test_networks_that_differ_in_layers_or_dtype_are_an_error(rank, several):
    net = dense_net((8,) if rank == 0 else (8, 4))
    with pytest.raises(hvd.HvdliteError, match="ranks disagree on entry 2: rank 0: nothing; rank"):
        hvd.broadcast_parameters(net.collect_params())
    other = mx.nd.ones((2,), dtype="float32" if rank == 0 else "float64")
    with pytest.raises(hvd.HvdliteError, match="rank 0: w .*float32.*; rank 1: w .*float64"):
        hvd.broadcast_parameters({"w": other})


def test_broadcast_parameters_refuses_wrong_arguments():
    with pytest.raises(ValueError, match="params is a list: expected a dict"):
        hvd.broadcast_parameters([mx.nd.ones(1)])
    with pytest.raises(ValueError, match="parameter 'w' is a float: expected a Parameter or an"):
        hvd.broadcast_parameters({"w": 1.0})
    with pytest.raises(ValueError, match=r"'\S*weight' is not initialized: call initialize"):
        hvd.broadcast_parameters(gluon.nn.Dense(3).collect_params())
