"""Gradients in shared memory: training stays bitwise equal; errors if they can't be shared."""

import ctypes
import gc
import mmap
import os

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from nets import clear_gradients, convnet, images, weights
from trained import assert_close, assert_equal_on_all_ranks, one_step, trained_weights
from versions import no_sparse_gluon

import hvdlite as hvd
from hvdlite.core.shared_memory import SharedMemory
from hvdlite.mxnet.zero_copy import is_shared

STEPS = 5

FLAGS = {
    "imperative": {},
    "hybridized": {"static_alloc": False},
    "static_alloc": {"static_alloc": True},
    "static_shape": {"static_alloc": True, "static_shape": True},
}
all_flags = pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS)


WINDOW = os.environ.get("HVDLITE_WINDOW") != "0"


@pytest.fixture(scope="module")
def shares() -> bool:
    """Return whether the ranks share memory in this run; if not, all gradients stay private."""
    return WINDOW and hvd.size() > 1


def made(flags=None):
    """Return a net whose gradients exist."""
    net = convnet(flags)
    net(mx.nd.ones((2, 8, 8, 8))).wait_to_read()
    return net


def distributed(params, **options):
    optimizer = mx.optimizer.SGD(learning_rate=0.05, momentum=0.9)
    return hvd.DistributedTrainer(params, optimizer, **options)


def wrapped(params, zero_copy: bool):
    optimizer = hvd.DistributedOptimizer(mx.optimizer.Adam(learning_rate=0.01))
    if zero_copy:
        hvd.share_gradients(params.values())
    return gluon.Trainer(params, optimizer, kvstore=None)


def train(net, trainer, first: int = 0) -> dict:
    for step in range(first, first + STEPS):
        one_step(net, trainer, images(step))
    return weights(net)


def trained_names(net) -> list:
    return [p.name for p in net.collect_params().values() if p.grad_req != "null"]


@all_flags
@pytest.mark.parametrize("net_of", [made, convnet], ids=["initialized", "deferred"])
def test_a_trainer_shares_gradients_by_default(flags, net_of, shares):
    private = net_of(flags)
    expected = train(private, distributed(private.collect_params(), zero_copy=False))
    shared = net_of(flags)
    trainer = distributed(shared.collect_params())
    assert trainer.zero_copy_parameters == []
    assert_close(train(shared, trainer), expected, 0)
    assert sorted(trainer.zero_copy_parameters) == (sorted(trained_names(shared)) if shares else [])
    assert_equal_on_all_ranks(trained_weights(shared))


@all_flags
def test_shared_gradients_train_the_same_weights_with_an_optimizer(flags):
    nets = made(flags), made(flags)
    private, shared = (
        train(n, wrapped(n.collect_params(), c)) for n, c in zip(nets, (False, True))
    )
    assert_close(shared, private, 0)


@all_flags
def test_gradients_of_a_trained_static_net_keep_their_memory(flags, shares):
    """A net with static shapes keeps writing gradients to the memory of its first backward."""
    nets = [made(flags), made(flags)]
    results = []
    for net, zero_copy in zip(nets, (False, True)):
        params = net.collect_params()
        train(net, gluon.Trainer(params, "sgd", {"learning_rate": 0.01}, kvstore=None))
        hvd.broadcast_parameters(params)
        trainer = distributed(params, zero_copy=zero_copy)
        results.append(train(net, trainer, STEPS))
    assert_close(*results, 0)
    if flags.get("static_shape"):
        assert trainer.zero_copy_parameters == []
    elif shares and not flags:
        assert sorted(trainer.zero_copy_parameters) == sorted(trained_names(net))


@pytest.mark.parametrize("holds", ["an array", "a list", "a view", "through data"])
def test_a_gradient_that_a_script_references_keeps_its_memory(holds, shares, rank, size):
    """If one rank holds a reference to a gradient, no rank shares this gradient."""
    net = gluon.nn.Dense(4, in_units=3)
    net.initialize(mx.init.Zero())
    if rank == size - 1:
        held = {
            "an array": lambda: net.weight.grad(),
            "a list": lambda: [net.weight.grad()],
            "a view": lambda: net.weight.grad()[1:2],
            "through data": lambda: net.weight.data().grad,
        }[holds]()
    trainer = distributed(net.collect_params())
    with autograd.record():
        (net(mx.nd.ones((2, 3))) * (rank + 1)).sum().backward()
    trainer.allreduce_grads()
    average = net.weight.grad().asnumpy()
    # each rank's gradient is a sum over two rows of ones
    np.testing.assert_allclose(average, size + 1)
    if rank == size - 1:
        array = held[0] if isinstance(held, list) else held
        np.testing.assert_array_equal(array.asnumpy(), average[: array.shape[0]])
    assert trainer.zero_copy_parameters == ([net.bias.name] if shares else [])


def test_shared_gradients_work_with_grad_req_add_and_several_passes(shares):
    nets = [made(), made()]
    results = []
    for net, zero_copy in zip(nets, (False, True)):
        params = net.collect_params()
        for param in params.values():
            param.grad_req = "null" if param.grad_req == "null" else "add"
        trainer = distributed(params, zero_copy=zero_copy, backward_passes_per_step=2)
        for step in range(6):
            one_step(net, trainer, images(step))
            clear_gradients(net)
        results.append(weights(net))
    assert_close(*results, 0)
    assert bool(trainer.zero_copy_parameters) == shares


def test_a_gradient_that_gluon_replaces_after_a_step_is_not_shared(shares):
    net = made()
    trainer = distributed(net.collect_params())
    one_step(net, trainer, images(0))
    net[3].weight.grad_req = "add"
    one_step(net, trainer, images(1))
    assert len(trainer.zero_copy_parameters) == (len(trained_names(net)) - 1 if shares else 0)
    assert not is_shared(net[3].weight)
    assert_equal_on_all_ranks(trained_weights(net))


def test_no_gradient_is_shared_if_one_rank_passes_zero_copy_false(rank, several):
    net = made()
    trainer = distributed(net.collect_params(), zero_copy=rank == 0)
    train(net, trainer)
    assert trainer.zero_copy_parameters == []
    assert_equal_on_all_ranks(trained_weights(net))


def mapped() -> int:
    with open("/proc/self/maps") as maps:
        return sum("memfd:hvdlite" in line for line in maps)


def test_shared_memory_is_freed_with_the_net(shares):
    gc.collect()
    before = mapped()
    net = made()
    trainer = distributed(net.collect_params())
    one_step(net, trainer, images(0))
    assert (mapped() > before) == shares
    del net, trainer
    gc.collect()
    mx.nd.waitall()
    assert mapped() == before


def test_pages_of_shared_memory_exist_before_other_ranks_map_the_memory():
    """Otherwise the pages would be on the NUMA node of the first rank that maps them."""
    memory = SharedMemory.reserve(1 << 20)
    if memory is None:
        pytest.skip("needs shared memory")
    room = memory.take(1 << 20)
    begin = -(-room.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
    pages = (room.ctypes.data + room.nbytes - begin) // mmap.PAGESIZE
    there = (ctypes.c_ubyte * pages)()
    length = ctypes.c_size_t(pages * mmap.PAGESIZE)
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(begin), length, there) == 0
    assert all(page & 1 for page in there)


@no_sparse_gluon
def test_gradients_that_cannot_be_shared_stay_private():
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Embedding(5, 3, sparse_grad=True), gluon.nn.Dense(2, in_units=3))
    net.initialize()
    net[1].bias.grad_req = "null"
    moved = hvd.share_gradients(net.collect_params().values())
    assert moved == ([net[1].weight.name] if WINDOW else [])


def test_share_gradients_is_refused_before_init_and_after_backward():
    net = gluon.nn.Dense(2)
    net.initialize()
    with pytest.raises(ValueError, match=f"'{net.weight.name}' is not initialized"):
        hvd.share_gradients(net.collect_params().values())
    with autograd.record():
        net(mx.nd.ones((1, 2))).sum().backward()
    with pytest.raises(ValueError, match="before the first backward"):
        hvd.share_gradients(net.collect_params().values())


def test_sharing_gradients_of_different_networks_is_an_error(several):
    net = gluon.nn.Dense(2 + hvd.rank(), in_units=300)
    net.initialize()
    with pytest.raises(hvd.HvdliteError, match=r"gradients\d+: ranks disagree.*rank 1"):
        hvd.share_gradients(net.collect_params().values())
