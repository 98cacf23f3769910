"""Steps with several backward passes, and with layers that a pass or a rank skips."""

import mxnet as mx
import numpy as np
import pytest
from nets import backward, backward_of, batch_of, clear_gradients, dense_net, joined_batch, weights
from optimizers import both_kinds, make_trainer, plain_trainer, sgd
from trained import assert_close, assert_equal_on_all_ranks

import hvdlite as hvd

ROWS = (3, 5, 2)  # batch size of each pass of a step; unequal, as at the end of an epoch


def alone(steps: int, batches_of_step) -> dict:
    """Return the weights that one process trains, with the batches of each step concatenated."""
    net = dense_net()
    trainer = plain_trainer(net, sgd())
    for step in range(steps):
        x = np.concatenate(batches_of_step(step))
        backward(net, x)
        trainer.step(len(x))
    return weights(net)


@both_kinds
@pytest.mark.parametrize("grad_req", ["write", "add"])
@pytest.mark.parametrize("cleared", ["never", "each step", "each pass"])
def test_training_with_several_passes_per_step_equals_one_process(kind, grad_req, cleared, rank):
    if grad_req == "add" and cleared == "never":
        pytest.skip("as in Gluon, the user clears gradients with grad_req='add'")
    net = dense_net()
    params = net.collect_params()
    for param in params.values():
        param.grad_req = grad_req
    trainer = make_trainer(kind, params, sgd(), backward_passes_per_step=len(ROWS))
    updates = []
    for step in range(3):
        for i, rows in enumerate(ROWS):
            before = weights(net)
            backward(net, batch_of(rank, 10 * step + i, rows))
            trainer.step(rows)
            changed = any((before[n] != w).any() for n, w in weights(net).items())
            updates.append(changed)
            if cleared == "each pass" or cleared == "each step" and i + 1 == len(ROWS):
                clear_gradients(net)
    assert updates == [False, False, True] * 3
    expected = alone(3, lambda step: [joined_batch(10 * step + i, n) for i, n in enumerate(ROWS)])
    assert_close(weights(net), expected)
    assert_equal_on_all_ranks(weights(net))


def test_a_learning_rate_schedule_counts_steps_not_passes(rank):
    schedule = mx.lr_scheduler.FactorScheduler(2, 0.5, base_lr=0.2)
    net = dense_net()
    trainer = hvd.DistributedTrainer(
        net.collect_params(), sgd(lr_scheduler=schedule), backward_passes_per_step=3
    )
    for i in range(12):
        backward(net, batch_of(rank, i))
        trainer.step(4)
    assert trainer._optimizer.num_update == 4


def test_update_accepts_ignore_stale_grad_if_allreduce_grads_did_not_get_it(rank):
    """Clipping scripts written for Gluon pass no ignore_stale_grad to allreduce_grads()."""
    net = dense_net((6, 6))
    trainer = hvd.DistributedTrainer(net.collect_params(), sgd())
    for step in range(3):
        backward(net[0] if (step + rank) % 2 else net, batch_of(rank, step))
        trainer.allreduce_grads()
        trainer.update(4, ignore_stale_grad=True)
    assert_equal_on_all_ranks(weights(net))


def test_a_layer_that_only_some_passes_use_is_updated(rank, size):
    net, twin = dense_net((6, 6)), dense_net((6, 6))
    trainer = hvd.DistributedTrainer(net.collect_params(), sgd(), backward_passes_per_step=2)
    plain = plain_trainer(twin, sgd())
    for step in range(3):
        for i, model in enumerate((net, net[0])):
            backward(model, batch_of(rank, 2 * step + i))
            trainer.step(4)
        backward_of([(twin, joined_batch(2 * step)), (twin[0], joined_batch(2 * step + 1))])
        plain.step(8 * size)
    assert_close(weights(net), weights(twin))


def test_a_stale_gradient_is_an_error_without_ignore_stale_grad(rank):
    net = dense_net()
    trainer = hvd.DistributedTrainer(net.collect_params(), sgd())
    backward(net[0], batch_of(rank))
    with pytest.raises(UserWarning, match="has not been updated by backward since last `step`"):
        trainer.step(4)


def test_a_stale_gradient_with_grad_req_add_keeps_its_sum(rank, size):
    """With grad_req='add' a rank without a new gradient sends the old sum, as in one process."""
    net, twin = dense_net((6, 6)), dense_net((6, 6))
    for model in (net, twin):
        model[1].weight.grad_req = "add"
    trainer = hvd.DistributedTrainer(net.collect_params(), sgd())
    plain = plain_trainer(twin, sgd())
    for step in range(3):  # the gradient is never set to zero
        backward(net[0] if (step + rank) % 2 else net, batch_of(rank, step))
        trainer.step(4, ignore_stale_grad=True)
        models = [twin[0] if (step + r) % 2 else twin for r in range(size)]
        backward_of([(model, batch_of(r, step)) for r, model in enumerate(models)])
        plain.step(4 * size, ignore_stale_grad=True)
    assert_close(weights(net), weights(twin), 1e-4)
