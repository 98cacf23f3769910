"""Weights and states of a ShardedTrainer: one copy per host; errors; what shutdown() does."""

import os
from collections import Counter

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from nets import dense_net, train
from optimizers import sgd
from trained import assert_close
from versions import MXNET2

import hvdlite as hvd

STEPS = 4

pytestmark = pytest.mark.skipif(MXNET2, reason="MXNet 2's optimizers compute other bits")


@pytest.fixture(scope="module")
def shares() -> bool:
    """Return whether the ranks of a host share memory; the weights do not depend on it."""
    return os.environ.get("HVDLITE_WINDOW") != "0" or hvd.local_size() == 1


def test_the_ranks_of_a_host_share_one_copy_of_the_weights(shares, asynchronous):
    """The other ranks of a host see what its lowest rank writes to a weight."""
    net = dense_net()
    trainer = hvd.ShardedTrainer(net.collect_params(), "sgd")
    assert trainer.host_parameters == []
    train(net, trainer, 1)
    names = [param.name for param in net.collect_params().values()]
    assert sorted(trainer.host_parameters) == sorted(names if shares else [])
    if not shares:
        return
    host_weight = trainer._updaters[0]._weights.by_index[0]
    hvd.barrier()
    if hvd.local_rank() == 0:
        host_weight.shared[:] = 42
        host_weight.shared.wait_to_read()
    hvd.barrier()
    assert (host_weight.weight.asnumpy() == 42).all()
    hvd.barrier()


def memory_of(array: np.ndarray) -> int:
    """Return the array's file in bytes, divided by the number of processes that map the file."""
    address, found, bytes_of = array.__array_interface__["data"][0], None, Counter()
    with open("/proc/self/smaps") as file:
        for line in file:
            words = line.split()
            if not words[0].endswith(":"):
                first, end = (int(word, 16) for word in words[0].split("-"))
                inode = words[4]
                found = inode if first <= address < end else found
            elif words[0] == "Pss:":
                bytes_of[inode] += int(words[1]) * 1024
    return bytes_of[found]


def test_weights_and_momentum_use_memory_once_per_host(shares):
    net = dense_net(units=(1000, 1000), in_units=1000)
    trainer = hvd.ShardedTrainer(net.collect_params(), sgd())
    train(net, trainer, 2, columns=1000)
    if not shares:
        return
    held = trainer._updaters[0]._weights.by_index.values()
    arrays = [a for host_weight in held for a in host_weight.arrays]
    needed = sum(array.nbytes for array in arrays)
    assert needed >= 4 * 2_002_000  # at least the weights are in the shared memory
    hvd.barrier()  # wait until each rank has mapped the memory
    held = sum(hvd.allgather_object(memory_of(arrays[0]))) / hvd.cross_size()
    assert 0.99 * needed < held < 1.02 * needed
    hvd.barrier()  # no rank may unmap the memory earlier


def test_a_rank_that_still_computes_reads_the_old_weights(asynchronous):
    """The last rank still computes with its weights when the other ranks have called step()."""
    w = gluon.Parameter("w", shape=(50_000,))
    w.initialize(mx.init.One())
    trainer = hvd.ShardedTrainer([w], "sgd", {"learning_rate": 1.0})
    read = []
    for _ in range(3):
        with autograd.record():
            (w.data() * 1).sum().backward()
        if hvd.rank() == hvd.size() - 1:
            slow = mx.nd.ones((400, 400))
            for _ in range(30):
                slow = mx.nd.dot(slow, slow) * 1e-3
            read.append(w.data() + (slow[0, 0] * 0).reshape((1,)))
        trainer.step(1)
        read.append(w.data() * 1)
    values = [(a.asnumpy().min(), a.asnumpy().max()) for a in read]
    after = [(-float(step), -float(step)) for step in range(3)]
    last = [(1.0, 1.0), (0.0, 0.0), (0.0, 0.0), (-1.0, -1.0), (-1.0, -1.0), (-2.0, -2.0)]
    assert values == (last if hvd.rank() == hvd.size() - 1 else after)


def test_a_sharded_trainer_uses_weights_that_a_script_writes(shares):
    """All ranks write the same values in place between steps."""

    def run(kind):
        net = dense_net()
        trainer = kind(net.collect_params(), sgd())
        for step in range(STEPS):
            train(net, trainer, 1)
            for param in net.collect_params().values():
                param.data()[:] = param.data() * 0.5 + step
        hvd.broadcast_parameters(net.collect_params())
        return train(net, trainer, 2)

    assert_close(run(hvd.ShardedTrainer), run(hvd.DistributedTrainer), 0)


def test_an_array_that_a_script_took_from_a_weight_shows_new_values():
    net = dense_net()
    held = {name: param.data() for name, param in net._collect_params_with_prefix().items()}
    got = train(net, hvd.ShardedTrainer(net.collect_params(), sgd()))
    for name, array in held.items():
        np.testing.assert_array_equal(array.asnumpy(), got[name])


def test_initializing_a_sharded_parameter_again_is_an_error_at_the_next_step(shares):
    if not shares:
        pytest.skip("parameters stay private")
    net = dense_net()
    trainer = hvd.ShardedTrainer(net.collect_params(), sgd())
    train(net, trainer, 1)
    net.initialize(force_reinit=True)
    with pytest.raises(ValueError, match="made anew.*make a new trainer"):
        train(net, trainer, 1)


@pytest.mark.parametrize("others", [("adam", {}), ("sgd", {"momentum": 0.9})], ids=["adam", "sgd"])
def test_ranks_with_different_optimizers_get_an_error(others, rank, several):
    """The ranks of a host share the memory of the states, so their sizes must be equal."""
    net = dense_net()
    trainer = hvd.ShardedTrainer(net.collect_params(), *(others if rank else ("sgd", {})))
    with pytest.raises(hvd.HvdliteError, match="optimizer.*the same optimizer"):
        train(net, trainer, 1)


def test_a_sharded_trainer_refuses_nadam():
    with pytest.raises(ValueError, match="Nadam.*use hvdlite.DistributedTrainer"):
        hvd.ShardedTrainer(dense_net().collect_params(), "nadam")


def test_a_failed_gradient_on_one_rank_is_an_error_on_all_ranks(asynchronous, several):
    """An operator fails on rank 0: no rank updates its weights, and all ranks get an error."""
    w = gluon.Parameter("w", shape=(3,))
    w.initialize(mx.init.One())
    trainer = hvd.ShardedTrainer([w], "sgd", {"learning_rate": 1.0})
    for fails in (False, True):
        with autograd.record():
            (w.data() * 1).sum().backward()
        if fails and hvd.rank() == 0:
            # fails when MXNet runs it, not when the script calls it
            wrong = mx.nd.random.normal(loc=0, scale=-1, shape=(3,))
            w.grad()[:] = wrong
        trainer.step(1)
        if fails:
            with pytest.raises(mx.MXNetError):
                w.data().wait_to_read()
        else:
            w.data().wait_to_read()


def test_weights_shared_by_a_host_stay_usable_after_shutdown(shares):
    """Each rank then has a private copy."""
    w = gluon.Parameter("w", shape=(300_000,))
    w.initialize(mx.init.One())
    trainer = hvd.ShardedTrainer([w], "sgd", {"learning_rate": 0.5, "momentum": 0.9})

    def step() -> None:
        with autograd.record():
            w.data().sum().backward()
        trainer.step(1)
        w.data().wait_to_read()

    step()
    assert trainer.host_parameters == (["w"] if shares else [])
    rank = hvd.rank()
    hvd.shutdown()
    with pytest.raises(hvd.HvdliteError, match="not been initialized"):
        step()
    assert (w.data().asnumpy() == np.float32(0.5)).all()
    hvd.init()
    if rank == 0:
        w.set_data(mx.nd.full((300_000,), 7))
        w.data().wait_to_read()
    hvd.barrier()
    assert (w.data().asnumpy() == np.float32(0.5 if rank else 7)).all()
