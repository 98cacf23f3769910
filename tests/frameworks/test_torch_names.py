"""The functions of hvdlite.torch have the parameters and defaults of horovod.torch."""

import inspect

import pytest

# The parameters in Horovod 0.28.1.
REDUCED = "average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0, process_set"
SCATTERED = "name=None, op=0, process_set, prescale_factor=1.0, postscale_factor=1.0"
GROUPED = {  # each function also has a grouped form
    "allreduce": f"tensor, {REDUCED.replace('op=', 'compression, op=')}",
    "allreduce_ allreduce_async allreduce_async_": f"tensor, {REDUCED}",
    "allgather allgather_async": "tensor, name=None, process_set",
    "reducescatter": f"tensor, {SCATTERED.replace('op=', 'compression, op=')}",
    "reducescatter_async": f"tensor, {SCATTERED}",
}
OTHERS = {
    "broadcast broadcast_ broadcast_async broadcast_async_": "tensor, root_rank, name=None, "
    "process_set",
    "alltoall alltoall_async": "tensor, splits=None, name=None, process_set",
    "sparse_allreduce_async": "tensor, name, op, process_set",
    "poll synchronize": "handle",
    "join": "device=-1",
    "barrier": "process_set",
    "broadcast_parameters": "params, root_rank",
    "broadcast_optimizer_state": "optimizer, root_rank, model=None",
    "broadcast_object": "obj, root_rank=0, name=None, process_set",
    "allgather_object": "obj, name=None",
    "DistributedOptimizer": "optimizer, named_parameters=None, compression, "
    "backward_passes_per_step=1, op=0, gradient_predivide_factor=1.0, num_groups=0, groups=None, "
    "sparse_as_dense=False, process_set",
    "SyncBatchNorm": "num_features, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True",
}
HOROVOD = {name: row for names, row in {**GROUPED, **OTHERS}.items() for name in names.split()}
HOROVOD.update(
    {
        f"grouped_{name}": HOROVOD[name].replace("tensor", "tensors", 1)
        for name in " ".join(GROUPED).split()
    }
)


@pytest.fixture(scope="module")
def hvd():
    import hvdlite.torch

    return hvdlite.torch


def parameters(function) -> list:
    """Return the parameters in the form of HOROVOD: only plain defaults, no annotations."""
    if inspect.isclass(function):
        made = function.__new__ if "__new__" in vars(function) else function.__init__
        given = list(inspect.signature(made).parameters.values())[1:]
    else:
        given = list(inspect.signature(function).parameters.values())
    plain = (int, float, bool, type(None))
    is_plain = [isinstance(p.default, plain) and p.name != "op" or p.default is None for p in given]
    return [f"{p.name}={p.default}" if shown else p.name for p, shown in zip(given, is_plain)]


@pytest.mark.parametrize("name", HOROVOD)
def test_each_function_of_torch_takes_horovods_parameters(name, hvd):
    theirs = [each.replace("op=0", "op") for each in HOROVOD[name].split(", ")]
    ours = parameters(getattr(hvd, name))
    assert ours[: len(theirs)] == theirs
    for more in ours[len(theirs) :]:
        assert "=" in more or more == "process_set"


def test_reductions_average_by_default(hvd):
    for name in ("reducescatter", "grouped_reducescatter_async", "DistributedOptimizer"):
        function = getattr(hvd, name)
        made = function.__new__ if inspect.isclass(function) else function
        assert inspect.signature(made).parameters["op"].default == hvd.Average


def test_an_unknown_name_of_hvdlite_torch_is_an_attribute_error(hvd):
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        hvd.nonsense  # noqa: B018
