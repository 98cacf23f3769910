"""Delegation: ranks agree through hvdlite; Gloo on the CPU moves the data in place of NCCL."""

import random

import gpu_checks
import pytest
import torch
import torch.distributed as dist

import hvdlite.torch as hvd
from hvdlite.core.native import HvdliteError
from hvdlite.torch import delegate, tensors

CPU = torch.device("cpu")
MOVERS = []


@pytest.fixture(autouse=True)
def gloo(monkeypatch):
    def group(store, rank, size):
        MOVERS.append(dist.ProcessGroupGloo(store, rank, size))
        return MOVERS[-1]

    monkeypatch.setitem(delegate.GROUPS, "cpu", group)
    tensors.DELEGATED.add("cpu")
    yield
    tensors.DELEGATED.discard("cpu")


@pytest.mark.parametrize("check", gpu_checks.CHECKS["hvdlite.torch"][:-2], ids=lambda c: c.__name__)
def test_the_gpu_checks_pass_on_cpus(check, rank, size):
    made = len(MOVERS)
    check(CPU, rank, size)
    assert len(MOVERS) == max(made, 1), "one group moves all tensors of all ranks"


def test_delegated_calls_pair_by_name_in_any_order(rank, size):
    order = random.Random(rank)
    for _ in range(10):
        numbers = order.sample(range(20), 20)
        handles = {
            i: hvd.allreduce_async(torch.full((100,), float(rank + i)), name=f"a{i}", op=hvd.Sum)
            for i in numbers
        }
        for i in order.sample(range(20), 20):
            assert handles[i].synchronize().tolist() == [sum(r + i for r in range(size))] * 100


def test_delegated_tensors_may_have_different_rows(rank, size):
    x = torch.arange(21.0).reshape(7, 3)
    found = hvd.reducescatter(x + rank, op=hvd.Sum)
    counts = [7 // size + (r < 7 % size) for r in range(size)]
    assert torch.equal(found, sum(x + r for r in range(size)).split(counts)[rank])
    gathered = hvd.allgather(torch.full((rank, 2), rank))
    assert gathered[:, 0].tolist() == [r for r in range(size) for _ in range(r)]
    splits = [(rank + to) % 3 for to in range(size)]
    rows, came = hvd.alltoall(torch.full((sum(splits) + 1,), rank), splits)
    assert came.tolist() == splits  # (from + to) % 3 rows in both directions
    assert rows.tolist() == [r for r in range(size) for _ in range(splits[r])]


@pytest.mark.parametrize("mode", [True, False])
def test_delegated_tensors_of_inference_mode_are_reduced_and_gathered(mode):
    with torch.inference_mode(mode):
        mean = hvd.allreduce_async_(torch.full((3,), 2.0), op=hvd.Average)
        rows = hvd.allgather_async(torch.ones(2))
    assert mean.synchronize().tolist() == [2.0] * 3
    assert rows.synchronize().is_inference() == mode


def test_delegation_works_for_one_rank_and_for_empty_tensors(rank, size):
    if size == 1:
        return
    alone = [hvd.add_process_set([r]) for r in range(size)]
    assert hvd.allreduce(torch.ones(3), process_set=alone[rank]).tolist() == [1] * 3
    assert hvd.allreduce(torch.ones(0)).shape == (0,)
    assert hvd.allgather(torch.ones(0, 2)).shape == (0, 2)
    for each in alone:
        hvd.remove_process_set(each)


def test_a_tensor_on_a_gpu_on_only_some_ranks_is_refused(rank, size):
    if size == 1:
        return
    hvd.allreduce(torch.ones(1), name="first")  # so that the next call does not set up delegation
    if rank:
        tensors.DELEGATED.discard("cpu")
    match = r"disagree on the memory: rank 0: a GPU's; ranks? 1.*: the host's.*HVDLITE_GPU=host"
    with pytest.raises(HvdliteError, match=match):
        hvd.allreduce(torch.ones(3), name="mixed")


def test_integer_averages_go_through_the_host(size):
    x = hvd.allreduce(torch.tensor([2**53 + 1]), op=hvd.Sum)
    assert x.tolist() == [(2**53 + 1) * size]
    before = max(each.made._turn for each in delegate._agreements.made.values())
    assert hvd.allreduce(torch.tensor([7]), op=hvd.Average).tolist() == [7]
    assert max(each.made._turn for each in delegate._agreements.made.values()) == before
