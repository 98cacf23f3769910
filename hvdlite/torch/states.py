"""Ensures that all ranks have equal weights and optimizer states.

A broadcast makes them equal. A Guard raises an error if weights have become unequal.
"""

from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Tuple, Union

import torch

from hvdlite.core import progress, topology
from hvdlite.core.agreement import agree
from hvdlite.core.names import group_names, owner_name
from hvdlite.core.objects import result_of_root
from hvdlite.core.process_set import ProcessSet, check_root, global_process_set
from hvdlite.torch import exchange
from hvdlite.torch.gradients import Gradients
from hvdlite.torch.optimizer import DistributedOptimizer
from hvdlite.torch.tensors import check
from hvdlite.training import guards, left_out


def broadcast_parameters(
    params: Union[dict, Iterable],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Overwrite tensors on every rank with the tensors of rank ``root_rank``.

    :param params: ``model.state_dict()``, ``model.named_parameters()`` or a list of tensors.
    :param root_rank: a rank of the job.
    :param process_set: the ranks that take part; only these ranks make the call.
    :raises ValueError: ``params`` is something else.
    :raises hvdlite.HvdliteError: the ranks' tensors differ in number, shape or dtype.
    """
    if isinstance(params, torch.Tensor) or not hasattr(params, "__iter__"):
        raise ValueError(
            f"params is a {type(params).__name__}: expected model.state_dict(), "
            "model.named_parameters() or a list of tensors"
        )
    check_root(root_rank, process_set)  # raises before anything is sent
    items = list(params.items() if isinstance(params, dict) else params)
    named = [each if isinstance(each, tuple) else (str(i), each) for i, each in enumerate(items)]
    tensors = [(name, value) for name, value in named if value is not None]
    for name, tensor in tensors:
        check(name, tensor, gpu=True)
    owner = owner_name("parameters", process_set)
    facts = [f"{name} ({t.dtype}, {tuple(t.shape)})" for name, t in tensors]
    agree(owner, facts, process_set=process_set, remedy="Make the same model on every rank.")
    _broadcast([tensor for _, tensor in tensors], root_rank, owner, process_set)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: Any = None
) -> None:
    """Replace the optimizer's ``state_dict()`` on every rank with rank ``root_rank``'s.

    The dict has each parameter's states, such as momentum, the learning rates, and all other
    options of any type. An optimizer that has taken no step has no states. If rank ``root_rank``'s
    optimizer has none, parameters without a gradient get a gradient of zeros, as with Horovod, but
    no step is taken.

    :param optimizer: any optimizer, distributed or not, of the same parameters on every rank.
    :param model: as in Horovod; not needed.
    :raises hvdlite.HvdliteError: on every rank, if the ranks' optimizers differ in class or
        parameters, or if the root's states can't be pickled.
    """
    check_root(root_rank, global_process_set)  # raises before anything is sent
    owner = owner_name("optimizer_state")
    param_groups = optimizer.param_groups
    groups = [len(group["params"]) for group in param_groups]
    facts = [f"{type(optimizer).__name__}, parameters in its groups: {groups}"]
    agree(owner, facts, remedy="Make the same optimizer on every rank.")
    tensors: List[torch.Tensor] = []
    is_root = topology.rank() == root_rank
    # Each rank keeps what compression has left out of its gradients.
    plain = plain_states(optimizer)
    gradients = getattr(optimizer, "_gradients", None)
    has_left_out = bool(gradients.left_out()) if isinstance(gradients, Gradients) else False
    pack = lambda: (_pack(plain.state_dict(), tensors), has_left_out)  # noqa: E731
    packed, has_root = result_of_root(pack, root_rank, owner)
    if not is_root:
        devices = {p.device.type: p.device for group in param_groups for p in group["params"]}
        state = _unpack(packed, tensors, devices)
    _broadcast(tensors, root_rank, owner, global_process_set)
    if not is_root:
        plain.load_state_dict(state)
    if gradients is not None:
        gradients.loaded(0)
        if has_root and not has_left_out:
            left_out.warn(f"rank {root_rank} has loaded its parts, but this rank has loaded none")
    if not plain.state_dict()["state"]:
        _make_gradients(optimizer)


def plain_states(optimizer) -> Any:
    """Return an object that has the plain optimizer's ``state_dict`` and ``load_state_dict``."""
    distributed = isinstance(optimizer, DistributedOptimizer)
    return super(DistributedOptimizer, optimizer) if distributed else optimizer


def _make_gradients(optimizer: torch.optim.Optimizer) -> None:
    for param in (param for group in optimizer.param_groups for param in group["params"]):
        if param.requires_grad and param.grad is None:
            zeros = torch.zeros_like(param)
            # SparseAdam takes only sparse gradients
            is_sparse = isinstance(optimizer, torch.optim.SparseAdam)
            param.grad = zeros.to_sparse(1) if is_sparse else zeros


class _Absent(NamedTuple):
    """Stands for a tensor in the pickle; the tensor itself is broadcast separately."""

    dtype: torch.dtype
    shape: Tuple[int, ...]
    kind: str  # type of the device


def _pack(value: Any, tensors: List[torch.Tensor]) -> Any:
    """Return the value with an _Absent for each tensor, and append the tensors to the list."""
    if isinstance(value, torch.Tensor):
        tensors.append(value.detach())
        return _Absent(value.dtype, tuple(value.shape), value.device.type)
    return _mapped(value, lambda each: _pack(each, tensors))


def _unpack(value: Any, tensors: List[torch.Tensor], devices: Dict[str, torch.device]) -> Any:
    """Return the value with a new tensor for each _Absent, and append the tensors to the list.

    :param devices: this rank's device of each type. A tensor is on the same type of device as on
        the root, because all ranks must send it in the same way.
    """
    if isinstance(value, _Absent):
        device = devices.get(value.kind, value.kind)
        tensors.append(torch.empty(value.shape, dtype=value.dtype, device=device))
        return tensors[-1]
    return _mapped(value, lambda each: _unpack(each, tensors, devices))


def _mapped(value: Any, function) -> Any:
    if type(value) is dict:
        return {key: function(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(function(each) for each in value)
    return value


def _broadcast(tensors, root_rank: int, owner: str, process_set: ProcessSet) -> None:
    alike: Dict[str, List[torch.Tensor]] = {}  # by type of device: a call moves one type
    for tensor in tensors:
        alike.setdefault(tensor.device.type, []).append(tensor)
    for number, (kind, some) in enumerate(alike.items()):
        call = f"{owner}.{kind}" if number else owner
        names = [f"broadcast.{name}" for name in group_names(call, some)]
        with progress.of_broadcast(root_rank, [t.nbytes for t in some]):
            exchange.broadcast(names, some, root_rank, process_set, in_place=True).synchronize()


class Guard(guards.Guard):
    """Checks every few steps that ranks have equal parameters, and no NaN or infinity.

    Call ``step()`` between backward and the optimizer's step. A ``DistributedOptimizer`` averages
    while backward runs, so one rank's NaN may have reached all ranks before the check.

    :param params: ``model.named_parameters()``, in the same order on every rank.
    :param every: steps between two checks; the first check is before the first step.
    :param process_set: the ranks that train together; other ranks check nothing.
    :raises ValueError: ``every`` is less than 1.
    """

    def _guarded(self) -> Iterator[guards.Guarded]:
        for name, param in self._params:
            gradient = None if param.grad is None else _as_numpy(param.grad)
            yield guards.Guarded(name, _as_numpy(param), gradient)


def _as_numpy(tensor: torch.Tensor):
    tensor = tensor.detach().cpu()
    if tensor.is_sparse:
        tensor = tensor._values()  # all other values of a sparse tensor are zeros
    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()
