"""PyTorch's Guard: parameters that differ and values that are no numbers, alike on every rank."""

import pytest
import torch
from torch_tensors import batch_of, multilayer, train

import hvdlite
import hvdlite.torch as hvd


def parameters(*tensors: torch.Tensor) -> list:
    return [(f"p{i}", torch.nn.Parameter(tensor)) for i, tensor in enumerate(tensors)]


def error_of(guard) -> str:
    with pytest.raises(hvdlite.HvdliteError) as caught:
        guard.step()
    return str(caught.value)


def test_training_passes(rank):
    model = multilayer(1)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
    )
    guard = hvd.Guard(model.named_parameters(), every=1)
    for step in range(2):
        train(model, optimizer, [batch_of(rank, step)])
        guard.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_parameter_that_comes_apart_is_named(dtype, rank, size, several):
    named = parameters(torch.ones(3), torch.ones(2, 5, dtype=dtype))
    guard = hvd.Guard(named, every=2)
    guard.step()
    guard.step()
    if rank == size - 1:
        named[1][1].data[1, 4] = 0.5
    text = error_of(guard)
    assert text.startswith("before step 3: parameter 'p1' differs between ranks: ")
    assert text.endswith("equal before 1")
    assert hvd.allgather_object(text) == [text] * size


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_gradient_that_is_no_number_is_named_with_its_rank(value, rank, size):
    named = parameters(torch.ones(4), torch.ones(3))
    loss = sum((p * (value if rank == size - 1 and n == "p1" else 1)).sum() for n, p in named)
    loss.backward()
    text = error_of(hvd.Guard(named, every=1))
    assert text.startswith("before step 1: the gradient of parameter 'p1' has NaN or infinite")
    assert f"on rank {size - 1} (3)" in text


def test_sparse_gradients_are_looked_at(rank):
    table = torch.nn.Embedding(10, 2, sparse=True)
    hvd.broadcast_parameters(table.state_dict(), root_rank=0)
    (table(torch.tensor([1, 7])) * (float("nan") if rank == 0 else 1)).sum().backward()
    assert "of parameter 'weight' has NaN" in error_of(hvd.Guard(table.named_parameters(), every=1))
