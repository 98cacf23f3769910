"""ShardedTrainer in jobs whose hosts divide the states of large weights among themselves.

On one host the tests hold, too, but nothing is divided.
"""

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from nets import batch_of, set_weights, train, weights
from optimizers import sgd
from trained import RULES, arrays, assert_close, assert_equal_on_all_ranks, bits, one_step
from versions import MXNET2

import hvdlite as hvd
from hvdlite.core.native import lib
from hvdlite.core.shared_memory import own_host
from hvdlite.mxnet.host_weights import Stripes

pytestmark = pytest.mark.skipif(MXNET2, reason="MXNet 2's optimizers compute other bits")

STRIPE = lib.HVD_STRIPE // 4
COLUMNS = 350
UNITS = (300, 70, 5)  # the layers' weights have 7 stripes of 64 KiB, 2 stripes, and a part of one


@pytest.fixture(scope="module")
def hosts() -> int:
    return own_host().hosts


def wide_net():
    """Return a net whose names do not depend on earlier blocks: files of states sort by name."""
    net, in_units = gluon.nn.HybridSequential(), COLUMNS
    for number, units in enumerate(UNITS):
        prefix = f"layer{number}_"
        net.add(gluon.nn.Dense(units, activation="tanh", in_units=in_units, prefix=prefix))
        in_units = units
    net.initialize()
    set_weights(net, 1)
    return net


def train_wide(net, trainer, steps: int = 3) -> dict:
    return train(net, trainer, steps, columns=COLUMNS)


def dealt(trainer) -> list:
    return [weight for weight in trainer._updaters[0]._weights.by_index.values() if weight.stripes]


def assert_alike(got: dict, expected: dict, hosts: int) -> None:
    """Assert bitwise equality, or closeness if more than two hosts sum in an unknown order."""
    assert_close(got, expected, 0 if hosts <= 2 else 2e-5)


@pytest.mark.parametrize("optimizer, args", RULES, ids=["sgd", "momentum", "nag", "adam"])
@pytest.mark.parametrize("clip", [False, True], ids=["step", "clipped"])
def test_training_is_the_same_with_states_divided_among_hosts(optimizer, args, clip, hosts):
    def run(kind):
        net = wide_net()
        trainer = kind(net.collect_params(), optimizer, dict(args))
        for step in range(3):
            one_step(net, trainer, batch_of(hvd.rank(), step, columns=COLUMNS), clip)
        assert_equal_on_all_ranks(weights(net))
        return bits(net, trainer)

    assert_alike(run(hvd.ShardedTrainer), run(hvd.DistributedTrainer), hosts)


def test_each_host_has_only_its_stripes_of_the_states(hosts):
    net = wide_net()
    trainer = hvd.ShardedTrainer(net.collect_params(), "adam")
    train_wide(net, trainer)
    weights = dealt(trainer)
    if hosts == 1:
        assert not weights
        return
    assert [weight.shared.shape for weight in weights] == [(300, COLUMNS), (70, 300)]
    for weight in weights:
        mean, variance = weight.states
        assert mean.size == variance.size <= weight.shared.size / hosts + STRIPE
    sizes = hvd.allgather_object(weights[0].states[0].size if hvd.local_rank() == 0 else 0)
    assert sum(sizes) == 300 * COLUMNS


@pytest.mark.parametrize("when", [0, 2], ids=["before the first step", "later"])
@pytest.mark.parametrize("first", ["DistributedTrainer", "ShardedTrainer"])
def test_training_goes_on_from_saved_states_divided_among_hosts(tmp_path, when, first, hosts):
    """Each kind of trainer loads the states that each kind has saved."""
    file = str(tmp_path / "states")
    net = wide_net()
    trainer = getattr(hvd, first)(net.collect_params(), "adam", {"learning_rate": 0.01})
    train_wide(net, trainer)
    trainer.save_states(file)
    middle = weights(net)
    expected = train_wide(net, trainer)
    for kind in (hvd.DistributedTrainer, hvd.ShardedTrainer):
        net = wide_net()
        trainer = kind(net.collect_params(), "adam", {"learning_rate": 0.1})
        train_wide(net, trainer, when)
        trainer.load_states(file)
        for name, param in net._collect_params_with_prefix().items():
            param.set_data(mx.nd.array(middle[name]))
        assert_alike(train_wide(net, trainer), expected, hosts)


def test_rank_0_writes_the_only_file_if_other_ranks_pass_none_to_save_states(tmp_path):
    net = wide_net()
    trainer = hvd.ShardedTrainer(net.collect_params(), sgd())
    train_wide(net, trainer)
    file = tmp_path / "states"
    trainer.save_states(str(file) if hvd.rank() == 0 else None)
    assert file.exists() == (hvd.rank() == 0)
    own = trainer._updaters[0].whole_states()
    if hvd.rank() == 0:
        alone = gluon.Trainer(net.collect_params(), sgd(), kvstore=None)
        alone.load_states(str(file))
        for index, states in alone._updaters[0].states.items():
            for array, expected in zip(arrays(own[index]), arrays(states)):
                np.testing.assert_array_equal(array.asnumpy(), expected.asnumpy())


def test_checkpoints_and_broadcasts_keep_states_divided_among_hosts(tmp_path, hosts):
    folder = hvd.broadcast_object(str(tmp_path))

    def make():
        net = wide_net()
        trainer = hvd.ShardedTrainer(net.collect_params(), sgd())
        return net, trainer, hvd.Checkpoint(folder, net=net, trainer=trainer)

    net, trainer, checkpoint = make()
    train_wide(net, trainer)
    checkpoint.save(1)
    hvd.broadcast_trainer_states(trainer)
    expected = train_wide(net, trainer)
    net, trainer, checkpoint = make()
    train_wide(net, trainer, 1)
    assert checkpoint.load()[0] == 1
    assert_alike(train_wide(net, trainer), expected, hosts)


def test_a_negative_momentum_is_refused_if_states_are_divided_among_hosts(hosts):
    if hosts == 1:
        pytest.skip("no weight is divided")
    net = wide_net()
    trainer = hvd.ShardedTrainer(net.collect_params(), sgd())
    train_wide(net, trainer, 1)
    trainer.optimizer.momentum = -0.5
    with pytest.raises(ValueError, match="divided among the job's hosts.*make a new trainer"):
        train_wide(net, trainer, 1)


@pytest.mark.parametrize("values", [STRIPE, STRIPE + 1, 5 * STRIPE, 6 * STRIPE - 7])
@pytest.mark.parametrize("hosts_of_all, first", [(1, 0), (2, 0), (2, 1), (3, 2), (7, 5)])
def test_the_joined_stripes_of_all_hosts_are_the_whole_weight(values, hosts_of_all, first):
    whole = np.arange(values, dtype=np.float32)
    parts = []
    for host in range(hosts_of_all):
        stripes = Stripes(values, hosts_of_all, host, first)
        parts.append(stripes.own(stripes.cut(mx.nd.array(whole))))
    joined = stripes.join(np.concatenate(parts), (values, 1))
    np.testing.assert_array_equal(joined.asnumpy()[:, 0], whole)
    assert set(parts[first][:STRIPE]) == set(whole[:STRIPE])
