"""Process sets: collectives among some of the ranks; init() with some of the ranks; join()."""

import re
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from mpi4py import MPI
from threads import outcomes

import hvdlite as hvd
import hvdlite.numpy
from hvdlite.core.registry import process_set_of, process_sets


@pytest.fixture
def sets(size):
    """Yield the sets of even ranks, of odd ranks, and of all but rank 0: some of them overlap."""
    lists = [list(range(0, size, 2)), list(range(1, size, 2)), list(range(1, size))]
    wanted = {tuple(ranks) for ranks in lists if ranks and len(ranks) < size}
    made = [hvd.add_process_set(list(ranks)) for ranks in sorted(wanted)]
    yield made
    for process_set in made:
        assert hvd.remove_process_set(process_set)


def test_a_process_set_knows_its_ranks_and_size(sets, rank, size):
    for process_set in sets:
        assert process_set.size() == len(process_set.ranks)
        assert process_set.included() == (rank in process_set.ranks)
        assert process_set_of(process_set.process_set_id) is process_set
        if process_set.included():
            assert process_set.rank() == process_set.ranks.index(rank)
        else:
            with pytest.raises(ValueError, match=f"rank {rank} is not in the process set"):
                process_set.rank()
    ids = [process_set.process_set_id for process_set in sets]
    assert hvd.allgather_object(ids) == [ids] * size
    everyone = hvd.global_process_set
    assert process_sets() == [everyone, *sets]
    assert (everyone.process_set_id, everyone.size(), everyone.rank()) == (0, size, rank)
    assert everyone.included() and everyone.ranks == list(range(size))
    assert not hvd.remove_process_set(everyone)


def test_collectives_of_a_process_set_use_only_its_ranks(sets, rank, size):
    """Test what tests/contract does not: averages, uneven rows, objects, errors."""
    for process_set in filter(hvd.ProcessSet.included, sets):
        of_set, ranks = {"process_set": process_set}, process_set.ranks
        mean = hvd.numpy.allreduce(np.full(7, rank, np.float64), **of_set)
        assert np.allclose(mean, np.mean(ranks))
        rows = hvd.allgather(mx.nd.full((rank + 1, 2), rank), **of_set).asnumpy()
        assert rows[:, 0].tolist() == [r for r in ranks for _ in range(r + 1)]
        assert hvd.broadcast_object({"from": rank}, ranks[-1], **of_set) == {"from": ranks[-1]}
        assert hvd.allgather_object(("rank", rank), **of_set) == [("rank", r) for r in ranks]
        outside = next(r for r in range(size) if r not in ranks)
        with pytest.raises(ValueError, match=f"rank {outside} is not in the process set"):
            hvd.broadcast(mx.nd.ones((2,)), outside, **of_set)
        if len(ranks) > 1:  # errors name global ranks
            with pytest.raises(hvd.HvdliteError) as shapes:
                hvd.numpy.allreduce(np.ones(rank + 1), name="differs", **of_set)
            with pytest.raises(hvd.HvdliteError) as roots:
                hvd.numpy.broadcast(np.ones(2), rank, name="root", **of_set)
            for other in ranks:
                assert f"rank {other}: ({other + 1},)" in str(shapes.value)
                assert f"rank {other}: {other}" in str(roots.value)
        assert (hvd.numpy.allreduce(np.ones(2), **of_set) == 1).all()


def test_concurrent_allreduces_in_several_process_sets_are_right(sets, rank):
    """Each rank submits to all its sets before it waits for any result."""
    pushed = []
    for process_set in sets:
        if process_set.included():
            array = mx.nd.full((300_000,), rank + 1)
            hvd.allreduce_(array, op=hvd.Sum, name="same_name", process_set=process_set)
            pushed.append((array, sum(r + 1 for r in process_set.ranks)))
    everyone = hvd.allreduce(mx.nd.ones((1000,)), op=hvd.Sum, name="same_name")
    for array, expected in [*pushed, (everyone, hvd.size())]:
        assert (array.asnumpy() == expected).all()


def test_an_unused_process_set_takes_no_memory(size, several):
    """A used process set has 2 MiB of shared memory per rank, and a job may have many sets."""

    def kilobytes():
        return int(re.search(r"RssShmem:\s+(\d+)", Path("/proc/self/status").read_text())[1])

    before = kilobytes()
    made = hvd.add_process_set(range(1, size))
    assert kilobytes() - before < 1024
    assert hvd.remove_process_set(made)


def test_handles_outlive_their_process_set(rank, size):
    """Handles in progress get one error in every thread; finished handles keep their result."""
    if size < 3:
        pytest.skip("a set of several ranks, but not of all, needs three")
    ranks = list(range(size - 1))
    process_set, left, done = hvd.add_process_set(ranks), [], []
    rows = np.ones((size - 1, 2))
    if rank in ranks:
        done = [hvd.numpy.allreduce_async(rows, op=hvd.Sum, process_set=process_set, name="done")]
        hvd.synchronize(done[0])
    if rank == 0:
        calls = hvd.numpy.allreduce_async, hvd.numpy.allgather_async, hvd.numpy.alltoall_async
        left = [call(rows, name="left", process_set=process_set) for call in calls]
    hvd.remove_process_set(process_set)
    for error in outcomes(left):
        assert isinstance(error, hvd.HvdliteError)
        assert "it called remove_process_set()" in str(error)
    for result in outcomes(done):
        assert (result == size - 1).all()


def test_a_wrong_or_existing_process_set_is_refused(size, rank):
    """Horovod refuses such sets, too. With one rank, the set of rank 0 is the global set."""
    with pytest.raises(ValueError, match="there is a process set of ranks .* already: global"):
        hvd.add_process_set(range(size))
    assert hvd.remove_process_set(hvd.ProcessSet([0])) is False  # this set is not registered
    for ranks in ([], [0, 0], [-1], [99]):
        with pytest.raises(ValueError, match="expected distinct ranks, each from 0 to"):
            hvd.add_process_set(ranks)
    if size == 1:
        return
    with pytest.raises(hvd.HvdliteError, match=r"process set \[0\]"):
        hvd.add_process_set([rank])  # ranks add different sets
    first = hvd.add_process_set([0])
    with pytest.raises(ValueError, match=r"there is a process set of ranks \[0\] already"):
        hvd.add_process_set([0])
    with pytest.raises(ValueError, match="is registered already"):
        hvd.add_process_set(first)
    assert hvd.remove_process_set(first)
    with pytest.raises(ValueError, match="is not registered"):
        first.size()
    again = hvd.add_process_set([0])
    assert again.included() == (rank == 0)
    assert hvd.remove_process_set(again)


def test_a_split_communicator_becomes_several_process_sets(rank, size):
    """Each rank passes its part of a split communicator; all parts become process sets."""
    part = MPI.COMM_WORLD.Split(rank % 2, rank)
    own = hvd.add_process_set(hvd.ProcessSet(part)) if size > 2 else None
    if own:
        assert own.ranks == list(range(rank % 2, size, 2))
        assert len(process_sets()) == 3
        total = hvd.allreduce(mx.nd.full((2,), rank), op=hvd.Sum, process_set=own)
        assert (total.asnumpy() == sum(own.ranks)).all()
        for process_set in process_sets()[1:]:
            assert hvd.remove_process_set(process_set)
    part.Free()


def test_collectives_of_a_process_set_are_refused_on_other_ranks(rank, size, several):
    """A rank outside of the set gets the error immediately, and no other rank waits."""
    x, members = mx.nd.ones((2, 2)), hvd.add_process_set(range(1, size))
    calls = [
        lambda: hvd.allreduce(x, process_set=members),
        lambda: hvd.grouped_allreduce_([x], process_set=members),
        lambda: hvd.allgather(x, process_set=members),
        lambda: hvd.broadcast_(x, 1, process_set=members),
        lambda: hvd.alltoall(x, process_set=members),
        lambda: hvd.reducescatter(x, process_set=members),
        lambda: hvd.broadcast_object(1, 1, process_set=members),
        lambda: hvd.allgather_object(1, process_set=members),
        lambda: hvd.barrier(members),
        lambda: hvd.join(members),
    ]
    for call in calls if rank == 0 else ():
        with pytest.raises(mx.MXNetError, match=r"rank 0\) is not in the process set") as caught:
            call()
        assert isinstance(caught.value, ValueError)
    assert hvd.remove_process_set(members)


@pytest.mark.parametrize("name", ["sum", None])
def test_init_takes_a_list_of_ranks_or_a_communicator(name, rank, size):
    """The ranks of the new job may have taken part in different numbers of earlier jobs."""
    if size < 3:
        pytest.skip("needs three ranks")
    world = MPI.COMM_WORLD
    hvd.shutdown()

    def job(comm) -> list:
        hvd.init(comm)
        total = hvd.numpy.allreduce([world.rank], op=hvd.Sum, name=name)[0]
        seen = [hvd.rank(), hvd.size(), total, hvd.local_size() * hvd.cross_size()]
        hvd.shutdown()
        return seen

    if world.rank in (0, 2):  # only the ranks in the list call init, and rank 2 is first in it
        assert job([2, 0]) == [int(world.rank == 0), 2, 2, 2]
    else:
        left_out = f"this process is rank {world.rank}, which the list leaves out"
        with pytest.raises(ValueError, match=left_out):
            hvd.init([2, 0])
    # two jobs at the same time, with ranks in reverse order
    part = world.Split(world.rank % 2, -world.rank)
    own = range(size)[world.rank % 2 :: 2]
    assert job(part)[:3] == [part.rank, len(own), sum(own)]
    part.Free()  # hvdlite uses duplicates, which shutdown() frees
    duplicate = world.Dup()
    hvd.init(duplicate)
    duplicate.Free()
    hvd.init()
    assert [hvd.rank(), hvd.size()] == [world.rank, size]
    assert hvd.remove_process_set(hvd.add_process_set([0, 1]))
    assert hvd.numpy.allreduce([world.rank], op=hvd.Sum, name=name)[0] == sum(range(size))


# ---- ranks with different numbers of batches ----


def test_a_joined_rank_contributes_zeros_for_tensors_it_never_submitted(rank, size):
    """Tensors submitted before join() keep their data, even if MXNet runs their allreduce later."""
    pushed = [mx.nd.ones((50_000,)) for _ in range(20)]
    for i, array in enumerate(pushed):
        hvd.allreduce_(array, name=f"pushed{i}", op=hvd.Sum)
    arrays = [mx.nd.full((7 * i + 1,), i) for i in range(30)]
    for i, array in enumerate(arrays if rank == size - 1 else ()):
        hvd.allreduce_(array, name=f"unseen{i}", op=hvd.Sum if i % 2 else hvd.Average)
    assert hvd.join() == size - 1
    for i, array in enumerate(arrays):
        assert (array.asnumpy() == i).all()
    for array in pushed:
        assert (array.asnumpy() == size).all()


def test_join_works_in_a_process_set(several, rank, size):
    process_set = hvd.add_process_set(list(range(1, size)))
    if process_set.included():
        for _ in range(rank):
            hvd.numpy.allreduce(np.ones(2), name="own", process_set=process_set)
        assert hvd.join(process_set=process_set) == size - 1
    assert (hvd.numpy.allreduce(np.ones(2), op=hvd.Sum) == size).all()
    hvd.remove_process_set(process_set)
