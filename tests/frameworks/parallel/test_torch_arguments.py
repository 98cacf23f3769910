"""Tests the arguments of torch.distributed's backends: lists of tensors, and wrong arguments."""

import pytest
import torch
import torch.distributed as dist


@pytest.fixture(params=["hvdlite", "gloo"])
def backend(request, groups):
    """Return a backend, which takes lists of tensors; PyTorch's own functions never pass lists."""
    group = groups[request.param == "gloo"]
    return group._get_backend(torch.device("cpu"))


@pytest.mark.parametrize("number", [1, 2, 3])
def test_collectives_with_several_tensors_per_rank_give_right_results(number, backend):
    """allreduce sums all tensors of all ranks; allgather orders them by rank and position."""
    rank, size = dist.get_rank(), dist.get_world_size()

    def given(salt=0):
        return [torch.full((3,), float(rank * number + i + salt)) for i in range(number)]

    every, last = range(size * number), number - 1
    ours = given()
    backend.allreduce(ours).wait()
    assert [t.tolist() for t in ours] == [[sum(every)] * 3] * number
    options = dist.BroadcastOptions()
    options.rootRank, options.rootTensor = size - 1, last
    ours = given()
    backend.broadcast(ours, options).wait()
    assert [t.tolist() for t in ours] == [[every[-1]] * 3] * number
    outs = [[torch.zeros(3) for _ in every] for _ in range(number)]
    backend.allgather(outs, given()).wait()
    assert [[t.tolist() for t in row] for row in outs] == [[[i] * 3 for i in every]] * number


def test_all_to_all_single_may_receive_into_rows_of_another_length(groups):
    size, rank = dist.get_world_size(), dist.get_rank()
    sent = torch.arange(3.0 * size).view(size, 3) + 100 * rank
    expected = [100 * other + 3 * rank + i for other in range(size) for i in range(3)]
    for splits in ((), ([3] * size, [1] * size)):
        out = torch.zeros(3 * size)
        dist.all_to_all_single(out, sent, *splits, group=groups[0])
        assert out.tolist() == expected


def test_torch_collectives_refuse_wrong_sizes_and_splits_immediately(groups):
    size = dist.get_world_size()
    with pytest.raises(
        RuntimeError, match="invalid tensor size"
    ):  # otherwise the call would write behind the end of the output
        dist.all_to_all_single(torch.ones(size), torch.ones(size, 300), group=groups[0])
    with pytest.raises(RuntimeError, match="as many elements"):
        dist.reduce_scatter_tensor(torch.ones(2), torch.ones(2 * size + 1), group=groups[0])
    with pytest.raises((RuntimeError, ValueError), match="(?i)split|divide"):
        dist.all_to_all_single(torch.ones(size), torch.ones(size), [2] * size, group=groups[0])


def options_of(kind: str, root: int, tensor: int = 0):
    options = getattr(dist, f"{kind}Options")()
    options.rootRank = root
    if kind in ("Broadcast", "Reduce"):
        options.rootTensor = tensor
    return options


@pytest.mark.parametrize(
    "call, given, why",
    [
        ("broadcast", lambda t, n: ([t], options_of("Broadcast", n)), "invalid root rank: "),
        ("broadcast", lambda t, n: ([t], options_of("Broadcast", 0, 1)), "invalid root tensor: 1"),
        ("broadcast", lambda t, n: ([t, t[1:]],), "invalid tensor size"),
        ("allreduce", lambda t, n: ([],), "requires non-empty tensor list"),
        ("allreduce", lambda t, n: ([t, t.int()],), "invalid tensor type"),
        ("allreduce_coalesced", lambda t, n: ([],), "requires non-empty tensor list"),
        ("reduce", lambda t, n: ([t], options_of("Reduce", -1)), "invalid root rank: -1"),
        ("reduce", lambda t, n: ([t, t],), "requires a single-element tensor list"),
        ("allgather", lambda t, n: ([], [t]), "input/output tensor lists to have the same length"),
        ("allgather", lambda t, n: ([[t] * (n + 1)], [t]), "invalid output tensor list"),
        ("allgather_coalesced", lambda t, n: ([[t]] * (n + 1), [t]), "equal to world size"),
        ("allgather_coalesced", lambda t, n: ([[t[1:]]] * n, [t]), "output tensor at index 0"),
        ("gather", lambda t, n: ([], [t], options_of("Gather", n)), "invalid root rank: "),
        ("gather", lambda t, n: ([], [t, t]), "requires a single-element input tensor list"),
        ("scatter", lambda t, n: ([t], [], options_of("Scatter", n)), "invalid root rank: "),
        ("scatter", lambda t, n: ([], []), "requires a single-element output tensor list"),
    ],
)
def test_a_wrong_argument_is_refused_with_the_error_text_of_gloo(call, given, why, backend):
    """The rank that passes the argument gets the error immediately."""
    arguments = given(torch.ones(3), dist.get_world_size())
    with pytest.raises((RuntimeError, ValueError), match=why):
        getattr(backend, call)(*arguments)


def test_wrong_lists_of_gather_and_scatter_are_refused_with_gloos_text(backend):
    """The root must pass a list with one tensor per rank; no other rank may pass a list."""
    t, rank, size = torch.ones(3), dist.get_rank(), dist.get_world_size()
    calls = {
        "Gather": ("output", lambda lists, o: backend.gather(lists, [t], o)),
        "Scatter": ("input", lambda lists, o: backend.scatter([t], lists, o)),
    }
    for kind, (which, call) in calls.items():
        for lists, why in (
            ([], f"requires a single-element {which} list"),
            ([[t] * (size + 1)], f"Incorrect {which} list size {size + 1}"),
            ([[t.int()] * size], "invalid tensor type"),
            ([[t[1:]] * size], "invalid tensor size"),
        ):
            with pytest.raises((RuntimeError, ValueError), match=why):
                call(lists, options_of(kind, rank))
        if size > 1:
            with pytest.raises((RuntimeError, ValueError), match=f"requires empty {which} on non-"):
                call([[t] * size], options_of(kind, (rank + 1) % size))
