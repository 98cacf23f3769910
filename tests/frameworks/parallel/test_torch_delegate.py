"""Tensors that NCCL moves, in an order on which hvdlite's ranks agree; here Gloo replaces NCCL."""

import random
import threading

import gpu_checks
import pytest
import torch
from like_nccl import LikeNccl
from torch import nn

import hvdlite.torch as hvd
from hvdlite.core.native import HvdliteError
from hvdlite.torch import delegate, device_groups, tensors

CPU = torch.device("cpu")
MOVERS, CALLS, UNDER_WAY = [], [], threading.Event()


class Gloo(LikeNccl):
    """Records its collectives: name, and number of elements."""

    def __init__(self, store, rank, size):
        super().__init__(store, rank, size)
        MOVERS.append(self)

    def allreduce(self, some, options):
        CALLS.append(("allreduce", some[0].numel()))
        UNDER_WAY.set()
        return super().allreduce(some, options)

    def _reduce_scatter_base(self, out, whole, options):
        CALLS.append(("reduce_scatter", whole.numel()))
        return self._group._reduce_scatter_base(out, whole, options)

    def broadcast(self, some, options):
        CALLS.append(("broadcast", some[0].numel()))
        return self._group.broadcast(some, options)


@pytest.fixture(autouse=True)
def gloo(monkeypatch):
    monkeypatch.setitem(delegate.GROUPS, "cpu", Gloo)
    tensors.DELEGATED.add("cpu")
    yield
    tensors.DELEGATED.discard("cpu")


@pytest.fixture
def anew():
    """Begin a new job, whose ranks have not agreed yet on how to move tensors."""
    hvd.shutdown()
    hvd.init()
    yield
    hvd.shutdown()
    hvd.init()


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


@pytest.mark.parametrize("op, scale", [(hvd.Sum, 1.0), (hvd.Average, 2.0), (hvd.Max, 1.0)])
def test_a_reducescatter_of_equal_parts_moves_only_the_parts(op, scale, rank, size):
    x = torch.arange(6.0 * size).reshape(2 * size, 3)
    hvd.allreduce(x)
    CALLS.clear()
    found = hvd.reducescatter(x + rank, op=op, prescale_factor=scale)
    (call,) = CALLS
    assert call == ("reduce_scatter", x.numel())
    of_ranks = torch.stack([scale * (x + r) for r in range(size)])
    whole = {hvd.Sum: of_ranks.sum(0), hvd.Average: of_ranks.mean(0), hvd.Max: of_ranks.amax(0)}[op]
    assert torch.allclose(found, whole.tensor_split(size)[rank])


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


def test_delegated_tensors_of_one_call_move_in_one_call_per_dtype(rank, size):
    some = [torch.full((n, 2), float(n + rank)) for n in (3, 0, 1, 5)]
    double = [torch.full((4,), rank, dtype=torch.float64)]
    hvd.allreduce(some[0])
    CALLS.clear()
    handle = hvd.grouped_allreduce_async(some + double, op=hvd.Average, prescale_factor=2.0)
    *found, last = handle.synchronize()
    assert sorted(CALLS) == [("allreduce", 4), ("allreduce", 18)]
    mean = sum(range(size)) / size
    assert torch.equal(last, torch.full((4,), 2 * mean, dtype=torch.float64))
    for given, result in zip(some, found):
        assert result.shape == given.shape
        assert torch.allclose(result, 2 * (given - rank + mean))
    CALLS.clear()
    hvd.broadcast_parameters(some, size - 1)
    assert CALLS == [("broadcast", 18)]
    for n, given in zip((3, 0, 1, 5), some):
        assert torch.equal(given, torch.full((n, 2), n + size - 1.0))


def test_batches_of_delegated_tensors_have_the_same_bits_on_all_ranks(rank, size):
    generator = torch.Generator().manual_seed(rank)
    some = [torch.randn(n, generator=generator) for n in (1, 7, 1000, 33)]
    for dtype in (torch.float32, torch.bfloat16):
        given = [each.to(dtype) for each in some]
        found = torch.cat(hvd.grouped_allreduce(given))
        everyone = hvd.allgather(found.reshape(1, -1))
        assert all(torch.equal(row, found) for row in everyone)
        exact = hvd.allreduce(torch.cat(given).double())
        assert torch.allclose(found.double(), exact, atol=1e-6 if dtype.itemsize == 4 else 0.05)


def test_compression_casts_delegated_gradients_before_they_are_moved(rank, size):
    """NCCL moves fp16 gradients. one_bit needs residuals, so the CPU moves its gradients."""
    for compression, moved in ((hvd.Compression.fp16, True), (hvd.Compression.one_bit(), False)):
        model = nn.Linear(4, 3, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        optimizer = hvd.DistributedOptimizer(optimizer, compression=compression)
        CALLS.clear()
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.full((1, 4), rank + 1.0)).sum().backward()
            optimizer.step()
        assert ([call for call in CALLS if call[1] >= 12] != []) == moved
        if moved:
            assert torch.equal(model.weight.grad, torch.full((3, 4), (size + 1) / 2))


DISAGREEMENTS = {
    "shape": lambda rank: hvd.allreduce(torch.ones(2 + rank), name="x"),
    "dtype": lambda rank: hvd.allreduce(  # NCCL can't average integers
        torch.ones(2, dtype=torch.float64 if rank else torch.int32), name="x"
    ),
    "op": lambda rank: hvd.grouped_allreduce(  # NCCL has no Adasum
        [torch.ones(2)] * 3, name="x", op=hvd.Adasum if rank else hvd.Sum
    ),
    "prescale_factor": lambda rank: hvd.allreduce(
        torch.ones(2), name="x", prescale_factor=rank + 1
    ),
    "root_rank": lambda rank: hvd.broadcast(torch.ones(2), rank, name="x"),
}  # fmt: skip


@pytest.mark.parametrize("what", DISAGREEMENTS)
def test_a_disagreement_about_a_delegated_tensor_is_an_error_on_every_rank(what, rank, several):
    hvd.allreduce(torch.ones(1))
    with pytest.raises(HvdliteError, match=rf"'\S*x\S*': ranks disagree on the {what}.*rank 0: "):
        DISAGREEMENTS[what](rank)


@pytest.mark.parametrize("what", ["dtype", "op"])
def test_a_disagreement_in_the_first_delegated_call_fails_on_every_rank(what, rank, several, anew):
    with pytest.raises(HvdliteError, match=f"ranks disagree on the {what}"):
        DISAGREEMENTS[what](rank)
    assert hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist() == [hvd.size()] * 3


def test_process_sets_that_overlap_move_their_tensors_at_the_same_time(rank, size):
    """Each rank starts the calls in another order."""
    if size < 3:
        return
    pairs = [hvd.add_process_set([r, (r + 1) % size]) for r in range(size)]
    own = [each for each in pairs if each.included()]
    order = random.Random(rank)
    for each in pairs:  # a set's first call makes its group: all ranks need the same order of sets
        if each.included():
            hvd.allreduce(torch.ones(1), process_set=each)
    for step in range(5):
        handles = [
            (each, number, hvd.allreduce_async(
                torch.full((1000,), float(rank + number)), name=f"{step}.{number}", op=hvd.Sum,
                process_set=each,
            ))
            for number in range(4)
            for each in order.sample(own, len(own))
        ]  # fmt: skip
        for each, number, handle in order.sample(handles, len(handles)):
            total = sum(r + number for r in each.ranks)
            assert handle.synchronize().tolist() == [total] * 1000
    for each in pairs:
        hvd.remove_process_set(each)


@pytest.mark.parametrize("first", [True, False])
def test_a_rank_that_has_joined_is_named_in_the_error(first, rank, size, several, anew):
    if not first:
        hvd.allreduce(torch.ones(1))
    if rank:
        match = r"rank 0 already joined.*of a GPU's tensor. Set HVDLITE_GPU=host on every rank"
        # fails on all these ranks, also if rank 0 joins later: rank 0 never calls this allreduce
        with pytest.raises(HvdliteError, match=match):
            hvd.allreduce(torch.ones(3), name="after", op=hvd.Sum)
    assert hvd.join() in range(size)
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == size


@pytest.mark.parametrize("why", ["RuntimeError: invalid usage", "its first call has not ended"])
def test_tensors_that_nccl_refuses_go_through_the_host(why, rank, size, anew, caplog, monkeypatch):
    class Refuses(Gloo):
        def allreduce(self, some, options):
            threading.Event().wait(0.5 if "first" in why else 0)  # as if messages were dropped
            raise RuntimeError("invalid usage")

    monkeypatch.setitem(delegate.GROUPS, "cpu", Refuses)
    monkeypatch.setattr("hvdlite.torch.mover.FIRST_CALL_SECONDS", 0.2 if "first" in why else 100)
    delegate._agreements.told.clear()
    for _ in range(2):
        found = hvd.allreduce(torch.full((3,), rank + 1.0), op=hvd.Sum)
        assert found.tolist() == [size * (size + 1) / 2] * 3
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == (rank == 0) and all(f"because NCCL refuses: {why}" in t for t in told)


def test_hvdlite_gpu_host_sends_tensors_through_the_host_without_a_warning(
    rank, size, anew, caplog, monkeypatch
):
    monkeypatch.setenv("HVDLITE_GPU", "host")
    if rank:
        tensors.DELEGATED.discard("cpu")  # on these ranks the tensor is on the CPU
    made = len(MOVERS)
    assert hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist() == [size] * 3
    assert len(MOVERS) == made and not caplog.records


def test_a_delegated_group_closes_while_another_thread_waits_in_a_call(rank, several, anew):
    hvd.allreduce(torch.ones(1))
    mover = next(iter(delegate._agreements.made.values())).made
    UNDER_WAY.clear()
    if rank == 0:
        handle = hvd.allreduce_async(torch.ones(3), name="late")
        UNDER_WAY.wait()
        hvd.barrier()
    else:
        with mover._calls:  # delays this rank's part of the allreduce, so rank 0 waits for it
            handle = hvd.allreduce_async(torch.ones(3), name="late")
            hvd.barrier()
    delegate.close_all()
    with pytest.raises(HvdliteError, match="has left the job"):
        handle.synchronize()


def test_the_thread_of_a_group_ends_with_the_group(anew):
    """A thread that still ran when the interpreter ended would abort the process."""
    hvd.allreduce(torch.ones(1))
    assert "hvdlite gpu" in [thread.name for thread in threading.enumerate()]
    delegate.close_all()
    assert "hvdlite gpu" not in [thread.name for thread in threading.enumerate()]


V28, V30 = (2, 28, 9), (2, 30, 3)


@pytest.mark.parametrize(
    "places, reason",
    [
        ("a 28, b 28", ""),
        ("a 28, b none", "rank 1: its PyTorch has no NCCL"),
        ("a 28, b 28, a 28", "ranks 0 and 2 share a GPU, which NCCL 2.28.9 refuses"),
        ("a 28 shares, a 28 shares", "ranks 0 and 1 share a GPU, which NCCL 2.28.9 refuses"),
        ("a 30 shares, a 28 shares", "ranks 0 and 1 share a GPU, which NCCL 2.28.9 refuses"),
        ("a 30, a 30", "NCCL 2.30.3 refuses; NCCL_MULTI_RANK_GPU_ENABLE=1 allows it"),
        ("a 30 shares, a 30", "NCCL 2.30.3 refuses; NCCL_MULTI_RANK_GPU_ENABLE=1 allows it"),
        ("a 30 shares, a 30 shares", ""),
    ],
)
def test_nccl_moves_tensors_unless_it_refuses_the_ranks_gpus(places, reason):
    made = {}
    for rank, text in enumerate(places.split(", ")):
        gpu, version, *words = text.split()
        nccl = {"28": V28, "30": V30, "none": ()}[version]
        made[rank] = device_groups.Place(gpu, nccl, "shares" in words)
    found = device_groups.why_host(made)
    assert found.endswith(reason) and bool(found) == bool(reason)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("how", ["tensor", "environment"])
def test_a_tensor_on_a_gpu_on_only_some_ranks_is_refused(
    how, first, rank, several, anew, monkeypatch
):
    if not first:
        hvd.allreduce(torch.ones(1))
    if rank and how == "tensor":
        tensors.DELEGATED.discard("cpu")
    elif rank:
        monkeypatch.setenv("HVDLITE_GPU", "host")
    match = r"disagree on the memory: rank 0: a GPU's; ranks? 1.*: the host's.*HVDLITE_GPU=host"
    for name, count in (("mixed", 1), ("several", 3)):
        with pytest.raises(HvdliteError, match=rf"\S*{name}\S*': ranks {match}"):
            hvd.grouped_allreduce([torch.ones(3)] * count, name=name)
    tensors.DELEGATED.add("cpu")
    monkeypatch.delenv("HVDLITE_GPU", raising=False)
    assert hvd.allreduce(torch.ones(3), name="mixed").tolist() == [1] * 3


def test_first_delegated_calls_with_different_names_pair_by_name(rank, size, anew):
    names = [f"x{(rank + i) % size}" for i in range(size)]
    handles = [hvd.allreduce_async(torch.full((2,), float(name[1:])), name=name) for name in names]
    assert [each.synchronize().tolist()[0] for each in handles] == [float(x[1:]) for x in names]


def test_integer_averages_of_gpu_tensors_go_through_the_host(size):
    x = hvd.allreduce(torch.tensor([2**53 + 1]), op=hvd.Sum)
    assert x.tolist() == [(2**53 + 1) * size]
    before = max(each.made._turn for each in delegate._agreements.made.values())
    assert hvd.allreduce(torch.tensor([7]), op=hvd.Average).tolist() == [7]
    assert max(each.made._turn for each in delegate._agreements.made.values()) == before
