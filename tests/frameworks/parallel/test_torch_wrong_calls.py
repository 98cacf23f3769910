"""A wrong argument of any type raises at the call and names itself; the job goes on."""

import torch
from wrong_calls import check_refused, check_verb, forms_of

import hvdlite.torch as hvd


@forms_of(hvd)
def test_the_wrong_argument_is_named(verb, rank, size):
    check_verb(hvd, verb, torch.ones(size, 2), rank)


def test_a_sparse_tensors_wrong_argument_is_named(rank):
    sparse = torch.eye(2).to_sparse(1)
    handle = check_refused(hvd.sparse_allreduce_async, rank, tensor=sparse, name="good", op=hvd.Sum)
    hvd.synchronize(handle)


def test_weights_states_and_optimizers(rank):
    model = torch.nn.Linear(2, 2)
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    check_refused(hvd.broadcast_parameters, rank, params=model.state_dict(), root_rank=0)
    check_refused(hvd.broadcast_optimizer_state, rank, optimizer=sgd, root_rank=0)
    check_refused(hvd.DistributedOptimizer, rank, optimizer=sgd)
    check_refused(hvd.join, rank)
