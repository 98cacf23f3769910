"""DistributedOptimizer: its class, its copies, its states, and the averages that it applies."""

import copy
import pickle

import mxnet as mx
import numpy as np
import pytest
from nets import dense_net, train
from optimizers import plain_trainer, sgd
from trained import assert_close, assert_equal_on_all_ranks

import hvdlite as hvd


def test_a_distributed_optimizer_is_an_instance_of_the_given_class():
    """Scripts set attributes of the optimizer, or unwrap it by `_optimizer`, Horovod's name."""
    plain = sgd(multi_precision=True)
    wrapped = hvd.DistributedOptimizer(plain)
    assert isinstance(wrapped, mx.optimizer.SGD)
    assert isinstance(wrapped, hvd.DistributedOptimizer)
    assert type(wrapped).__name__ == "SGD" and wrapped._optimizer is plain
    assert wrapped.multi_precision
    assert wrapped.aggregate_num == plain.aggregate_num > 0
    wrapped.set_learning_rate(0.25)
    wrapped._optimizer.rescale_grad = 0.125
    wrapped.set_lr_mult({"w": 2.0})
    wrapped.idx2name = {0: "w"}
    assert (plain.learning_rate, wrapped.rescale_grad) == (0.25, 0.125)
    assert plain.lr_mult["w"] == 2.0
    assert plain.idx2name == {0: "w"}
    for copied in (copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped))):
        assert type(copied._optimizer) is mx.optimizer.SGD
        copied.lr_mult = {"w": 3.0}
        assert copied._optimizer.lr_mult == {"w": 3.0}


def test_only_a_plain_optimizer_can_be_made_distributed():
    with pytest.raises(ValueError, match="expected a plain MXNet optimizer, got SGD that is"):
        hvd.DistributedOptimizer(hvd.DistributedOptimizer(sgd()))
    with pytest.raises(ValueError, match="expected a plain MXNet optimizer, got str"):
        hvd.DistributedOptimizer("sgd")


def test_an_updater_of_a_distributed_optimizer_averages(rank, size):
    """Module and hand-written loops use an Updater."""
    optimizer = hvd.DistributedOptimizer(mx.optimizer.SGD(learning_rate=0.5))
    updater = mx.optimizer.get_updater(optimizer)
    w = mx.nd.ones((3,))
    for i in (7, "name"):
        updater(i, mx.nd.full((3,), rank), w)
    np.testing.assert_allclose(w.asnumpy(), 1 - 2 * 0.5 * (size - 1) / 2, rtol=1e-6)


@pytest.mark.parametrize(
    "clone",
    [copy.copy, copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))],
    ids=["copy", "deepcopy", "pickle"],
)
@pytest.mark.parametrize("trained_before", [False, True])
def test_copies_of_a_distributed_optimizer_average_too(clone, trained_before):
    net, alone = dense_net(), dense_net()
    compression = hvd.Compression.two_bit(1e-9) if trained_before else hvd.Compression.none
    optimizer = hvd.DistributedOptimizer(sgd(), compression=compression)
    if trained_before:  # after training it has a param_dict, which MXNet does not pickle
        other = dense_net(seed=9)
        train(other, plain_trainer(other, optimizer), steps=1)
        optimizer.rescale_grad = 1.0
    cloned = clone(optimizer)
    assert isinstance(cloned, hvd.DistributedOptimizer)
    assert cloned.momentum == 0.9
    assert cloned._averaging.gradients.reduction.compression == compression
    if not trained_before:
        expected = train(alone, plain_trainer(alone, sgd()), joined=True)
        assert_close(train(net, plain_trainer(net, cloned)), expected)
    else:
        assert_equal_on_all_ranks(train(net, plain_trainer(net, cloned)))
    owners = [each._averaging.gradients.owner for each in (optimizer, cloned)]
    assert owners[0] != owners[1]  # optimizers that are both in use need different tensor names


def test_a_trainer_that_loads_states_of_a_plain_optimizer_still_averages(rank, tmp_path):
    """load_states() replaces the optimizer with the file's optimizer, which does not average."""
    nets = [dense_net(), dense_net(), dense_net()]
    plain = plain_trainer(nets[0], sgd())
    train(nets[0], plain, steps=1, joined=True)
    plain.save_states(str(tmp_path / "states"))
    trainers = [
        plain_trainer(nets[1], sgd()),
        plain_trainer(nets[2], hvd.DistributedOptimizer(sgd())),
    ]
    for trainer in trainers:
        trainer.load_states(str(tmp_path / "states"))
    alone = train(nets[1], trainers[0], joined=True)
    assert_close(train(nets[2], trainers[1]), alone)
