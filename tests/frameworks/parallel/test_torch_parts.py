"""torch.distributed over hvdlite: tensors of one call that share memory or have wrong sizes."""

import pytest
import torch
import torch.distributed as dist


@pytest.mark.filterwarnings("ignore:.*coalesced")
def test_tensors_of_a_coalesced_call_that_share_memory_are_summed_right(groups, rank, size):
    total = sum(range(1, size + 1))
    for _ in range(5):
        whole = torch.full((100_000,), rank + 1.0)
        given = [whole, whole[:60_000], torch.ones(3), whole[40_000:], whole]
        dist.all_reduce_coalesced(given, group=groups[0])
        assert (whole == total).all()
        assert given[2].tolist() == [size] * 3


@pytest.mark.parametrize("call", ["splits", "lists"])
def test_parts_of_unexpected_sizes_in_a_torch_all_to_all_fail(call, groups, rank, size, several):
    """Rank 0 expects the right total, but one row too many from itself, one too few from rank 1."""
    # the numbers of rows that each rank sends to rank 0, 1, ...
    parts = [2 + (to == 0) - (to == 1) for to in range(size)]
    own = parts[rank] * size
    expected = [parts[rank]] * size
    expected[0] += rank == 0
    expected[1] -= rank == 0
    sent, out = torch.arange(2.0 * size), torch.zeros(own)

    def exchange(sizes):
        if call == "splits":
            dist.all_to_all_single(out, sent, sizes, parts, group=groups[0])
        else:
            dist.all_to_all(list(out.split(sizes)), list(sent.split(parts)), group=groups[0])

    if rank == 0:
        with pytest.raises(
            dist.DistBackendError, match="rank 0 of the group sends 3 elem.*, which expects 4"
        ):
            exchange(expected)
    else:
        exchange(expected)
    exchange([parts[rank]] * size)
    first = sum(parts[:rank])
    assert out.tolist() == [float(first + i) for i in range(parts[rank])] * size
